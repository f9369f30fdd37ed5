"""Adapters trained independently on real texts, and ways to choose among them."""
