"""The home folder: stored bytes, generations and their lock, locks of writers and readers."""
