"""Answers to commands: settings, what is installed and composed, what `check` looks at."""
