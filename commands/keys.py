"""Keys of signed wheels: the command that makes a pair, and the option for public keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import json_option, print_json

if TYPE_CHECKING:
    from ..registry.wheel.signing import PublicKey
    from .printed import KeyPair


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


@click.command("new-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option("commands.printed.KeyPair")
def new_key(*, file: Path, as_json: bool) -> None:
    """Make a key pair to sign wheels with.

    FILE is private; its .pub.pem can be published.
    """
    from ..registry.wheel.signing import new_key as make
    from ..registry.wheel.signing import read_keys

    public = make(file)
    [key] = read_keys([public])
    if as_json:
        pair: KeyPair = {
            "private": str(file),
            "public": str(public),
            "fingerprint": key.fingerprint,
        }
        print_json(pair)
        return
    click.echo(f"private    {file} (keep it to yourself; it has no password)")
    click.echo(f"public     {public} sha256:{key.fingerprint}")
    click.echo(f"next: redhost pack DIR --sign {file}")
