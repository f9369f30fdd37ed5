"""The home folder: stored bytes, generations with their lock, and who writes or reads them."""
