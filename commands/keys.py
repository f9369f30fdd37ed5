"""The option for the public keys of signed wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..registry.wheel.signing import PublicKey

key_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="PUB.pem",
    help="Refuse a wheel that none of these signed (default: keys in [tool.redhost], whose lists "
    "of what is revoked count as well).",
)


def chosen_keys(given: tuple[str, ...]) -> tuple[PublicKey, ...]:
    """Return the keys given on the command line, else those of the project; usually none."""
    from ..registry.queries.settings import load_settings
    from ..registry.wheel.signing import read_keys

    return read_keys(given or load_settings().keys or ())
