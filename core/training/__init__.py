"""Training: rows with answers, and routers from cards alone."""
