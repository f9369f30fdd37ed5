"""Evaluation: baselines, mixtures of domains, out-of-distribution input, routing health."""
