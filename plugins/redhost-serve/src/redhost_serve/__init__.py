"""An HTTP server for redhost: one process, one live host, swaps without a pause."""
