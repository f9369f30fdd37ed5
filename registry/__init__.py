"""Packages, environment and home: what is installed, valid and composed. Needs no torch.

Import the modules directly (``from redhost.registry.package.discover import discover``). Nothing is
re-exported here, so that ``redhost --help`` imports only the modules it uses.
"""
