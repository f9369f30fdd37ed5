"""Thousands of broken copies of a good expert: each is refused, or loads to the same digest."""
