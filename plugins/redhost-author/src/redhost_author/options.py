"""An option of the commands that train."""

from __future__ import annotations

import click

seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."
)
"""Adds ``--seed``."""
