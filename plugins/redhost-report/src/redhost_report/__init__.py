"""Explain an answer, and document a generation as one page."""
