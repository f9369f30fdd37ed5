"""Plugins: the hook spec, trusted plugins, and the built-in parts as the first plugin."""
