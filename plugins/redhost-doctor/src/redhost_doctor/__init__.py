"""The verbs `redhost doctor` and `redhost why`.

Nothing here imports torch or code of a package, and nothing uses the network.
"""
