"""What is installed, may it attach, and what was composed: everything that needs no torch.

Import the modules directly (``from redhost.registry.package.discover import discover``): nothing is
re-exported here, so that ``redhost --help`` pays only for what it uses.
"""
