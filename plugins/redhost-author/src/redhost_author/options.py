"""An option of the commands that train."""

from __future__ import annotations

import click

from redhost.core.types import MAX_SEED

seed_option = click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=0,
    show_default=True,
    help="Random seed.",
)
"""Adds ``--seed``."""
