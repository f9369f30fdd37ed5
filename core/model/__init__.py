"""A composed model in memory: built from checked bytes, loaded from the store, answering texts."""
