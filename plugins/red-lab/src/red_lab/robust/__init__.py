"""Robust gates in the lab: finite games, traffic that is uneven, conflicts, growth."""
