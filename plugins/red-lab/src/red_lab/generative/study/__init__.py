"""One causal language model, five domains: experts, gates and monoliths in bits per byte."""
