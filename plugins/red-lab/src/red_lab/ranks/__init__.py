"""Experts served at several ranks: one package, compared with one package for each rank."""
