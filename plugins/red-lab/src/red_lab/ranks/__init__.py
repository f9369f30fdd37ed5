"""Experts that are served at several ranks: one package, beside one for each rank."""
