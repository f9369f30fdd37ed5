"""Training: from an author's rows to a packaged expert or backbone."""
