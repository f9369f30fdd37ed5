"""How code enters: the hook spec, trusted plugins, the built-in parts as the first of them."""
