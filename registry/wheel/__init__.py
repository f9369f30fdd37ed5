"""Wheels: strict archives, the files a wheel may contain, and its signature."""
