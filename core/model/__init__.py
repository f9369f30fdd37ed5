"""A composed model in memory: built from verified bytes, loaded from the store, answering texts."""
