"""Generative experts: real text by domain, and a tiny causal language model as their backbone."""
