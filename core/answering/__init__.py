"""A generation in memory: read from the store, checked, built once, answering texts."""
