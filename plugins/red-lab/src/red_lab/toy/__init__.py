"""Toy experiments on adding two numbers: which separately trained experts can be mixed."""
