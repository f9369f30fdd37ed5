"""Keys of signed wheels: the command that makes a pair, and the option that names public ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import json_option, print_json

if TYPE_CHECKING:
    from ..registry.keys import PublicKey
    from .printed import KeyPair

__all__ = ["COMMANDS", "chosen_keys", "key_option", "new_key"]

key_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="PUB.pem",
    help="Refuse a wheel that none of these signed (default: keys in [tool.redhost]).",
)


def chosen_keys(given: tuple[str, ...]) -> tuple[PublicKey, ...]:
    """Return the keys of the command line, else those of the project; usually there are none."""
    from ..registry.keys import read_keys
    from ..registry.settings import load_settings

    return read_keys(given or load_settings().keys or ())


@click.command("new-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option("commands.printed.KeyPair")
def new_key(*, file: Path, as_json: bool) -> None:
    """Make a key pair to sign wheels with.

    FILE is private; its .pub.pem is for everybody.
    """
    from ..registry.keys import new_key as make
    from ..registry.keys import read_keys

    public = make(file)
    [key] = read_keys([public])
    if as_json:
        told: KeyPair = {
            "private": str(file),
            "public": str(public),
            "fingerprint": key.fingerprint,
        }
        print_json(told)
        return
    click.echo(f"private    {file} (keep it to yourself; it has no password)")
    click.echo(f"public     {public} sha256:{key.fingerprint}")
    click.echo(f"next: redhost pack DIR --sign {file}")


COMMANDS = (new_key,)
