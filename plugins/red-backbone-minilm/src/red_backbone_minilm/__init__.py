"""redhost backbone minilm (data only)."""
