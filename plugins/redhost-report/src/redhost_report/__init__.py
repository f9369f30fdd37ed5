"""Explain an answer, and write a generation down as one page."""
