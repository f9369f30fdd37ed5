"""Queries behind commands: settings, what is installed and composed, and what `check` checks."""
