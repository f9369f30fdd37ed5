"""Seed 001: Residual Expert Decomposition on arithmetic, against its baselines and fair ones."""
