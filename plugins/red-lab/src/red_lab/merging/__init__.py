"""Experts and adapters as one: a composition folded into an expert, parameters averaged."""
