"""redhost backbone: a tiny Qwen3 that read arithmetic, adapted once and frozen (data only)."""
