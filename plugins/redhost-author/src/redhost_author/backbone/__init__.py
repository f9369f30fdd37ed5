"""A backbone package from any model: read, adapted or not, written, and tried."""
