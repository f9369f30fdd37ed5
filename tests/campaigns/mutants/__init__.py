"""Thousands of broken copies of a good expert: each is refused or loads with the same digest."""
