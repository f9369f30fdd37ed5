"""A plain Qwen3 encoder in torch alone, for packages that contain one."""
