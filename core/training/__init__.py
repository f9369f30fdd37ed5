"""Training: an author's rows to a packaged expert or backbone; a router from cards alone."""
