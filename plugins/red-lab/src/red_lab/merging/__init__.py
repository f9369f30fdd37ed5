"""Merge experts and adapters into one: distil a composition, or average parameters."""
