"""The toy experiments on adding two numbers: which experts can be trained apart and mixed."""
