"""What a router learns from, and its training: cards, the experts' voices, one optimiser."""
