"""Where text is generated: a bus whose rows are tokens, under a causal router (seed 002)."""
