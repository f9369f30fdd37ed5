"""The environment: what is installed, how far each package gets, pip, and which code is trusted."""
