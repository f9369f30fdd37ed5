"""Adapters trained apart on real texts, and who chooses among them."""
