"""Commands about what is revoked: revoke, revoked."""

from __future__ import annotations

from pathlib import Path

import click

from redhost.commands.common import chosen_keys, home_option, json_option, print_json

SECONDS = 30.0


@click.command()
@click.argument("target", metavar="DIGEST|WHEEL")
@click.option("--reason", default="", metavar="TEXT", help="Why; everyone will read it.")
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Your private key; it must have signed the list so far.",
)
@click.option(
    "--list",
    "file",
    default="revoked.json",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The list; begun if it is missing.",
)
@click.option("--withdraw", is_flag=True, help="Lift its entry.")
@home_option
@json_option("redhost_revoke.edit.Edited")
def revoke(
    *,
    target: str,
    reason: str,
    key: Path,
    file: Path,
    withdraw: bool,
    home: Path | None,
    as_json: bool,
) -> None:
    """Add an expert or backbone to a signed list of what is revoked.

    DIGEST is that of its content, as in redhost.lock. Publish the list as revoked.json beside the
    pages of your index, or in your folder of wheels. Keep the file: its serial may only grow.
    """
    from redhost.registry.errors import UsageError
    from redhost.registry.queries.settings import resolve_home
    from redhost_revoke.edit import edit_list, target_of

    if not withdraw and not reason.strip():
        raise UsageError("a revocation has a reason", expected="--reason TEXT", found="none")
    named = target_of(target, home=resolve_home(home))
    done = edit_list(file, named, key=key, reason=reason, withdraw=withdraw)
    if as_json:
        print_json(done)
        return
    what = "lifts" if withdraw else "revokes"
    if done.begun:
        click.echo(
            f"begins {file}: a key has one list. If this one has another elsewhere, copy it here "
            "first: homes follow the highest serial, which lifts what only the other revokes"
        )
    click.echo(f"{file} {what} {done.digest[:12]}…: {done.entries} entries, serial {done.serial}")
    click.echo("next: publish it as revoked.json beside the pages of your index")


@click.command()
@click.option("--index-url", metavar="URL", help="Fetch the list of this index, or folder.")
@click.option("--fetch", is_flag=True, help="Fetch those of the places that the lock records.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="PUB.pem",
    help="Follow the lists that these signed, and require no signed wheels (default: keys in "
    "[tool.redhost], which also refuse wheels that none of them signed).",
)
@click.option("--allow", "allowed", multiple=True, metavar="DIGEST", help="Use it even so, here.")
@click.option("--forbid", multiple=True, metavar="DIGEST", help="End that.")
@click.option(
    "--forget",
    "forgotten",
    multiple=True,
    metavar="KEY",
    help="Drop the list of a key that is no longer trusted, by its fingerprint.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long an index may be silent.",
)
@home_option
@json_option("redhost_revoke.known.Known")
def revoked(
    *,
    index_url: str | None,
    fetch: bool,
    keys: tuple[str, ...],
    allowed: tuple[str, ...],
    forbid: tuple[str, ...],
    forgotten: tuple[str, ...],
    timeout: float,
    home: Path | None,
    as_json: bool,
) -> None:
    """Show what this home knows to be revoked; fetch a list if an index is named.

    A list counts if a trusted key signed it and it is not older than the last one of that key.
    What it names is neither composed, loaded nor served any more.
    """
    from redhost.registry.queries.settings import resolve_home
    from redhost_revoke.fetch import fetch_lists, recorded_places
    from redhost_revoke.known import allow, forget, keep_lists, known_in, lines_of

    where, changed, change = resolve_home(home), False, None
    places = (index_url,) if index_url else recorded_places(where) if fetch else ()
    if places:
        trusted = chosen_keys(keys)
        change = keep_lists(where, fetch_lists(places, timeout=timeout), keys=trusted)
        changed = change.changed
    if forgotten:
        changed = forget(where, forgotten) or changed
    if allowed or forbid:
        changed = allow(where, allowed, forbid=forbid) or changed
    known = known_in(where, changed=changed, change=change)
    if as_json:
        print_json(known)
        return
    click.echo("\n".join(lines_of(known)))
    if known.composed:
        click.echo("next: redhost recompose")
