"""redhost backbone: all-MiniLM-L6-v2, in the files of another package (data only)."""
