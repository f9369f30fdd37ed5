"""What a composition is worth: systems side by side, mixtures, unknown input, routing health."""
