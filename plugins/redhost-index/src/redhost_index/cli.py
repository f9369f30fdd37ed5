"""Commands on the versions of an index: catalogue, outdated, search, upgrade."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redhost.commands.common import (
    bar,
    chosen_keys,
    device_option,
    home_option,
    json_option,
    key_option,
    print_json,
    tolerance_option,
)

if TYPE_CHECKING:
    from redhost_index.find import Found
    from redhost_index.outdated import Outdated, Standing
    from redhost_index.upgrade import Upgrades

SECONDS = 30.0
NAMED = 5
"""Packages that are named of those that were not compared for one reason."""

SHOWN = 20
"""Matches that are printed without --limit."""

_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long an index may be silent.",
)
_index_url = click.option(
    "--index-url", metavar="URL", help="The index to ask (default: the one in the lock)."
)
_find_links = click.option(
    "--find-links", metavar="FOLDER", help="The folder of wheels to look in, instead of an index."
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--simple",
    is_flag=True,
    help="Also write simple/, an index for pip (PEP 503); what its pages mark as yanked stays so.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="PUB.pem",
    help="Note which wheels one of these signed (default: keys in [tool.redhost]); all are listed.",
)
@json_option("redhost_index.catalogue.Catalogued")
def catalogue(*, folder: Path, simple: bool, keys: tuple[str, ...], as_json: bool) -> None:
    """List the experts in a FOLDER of wheels.

    Writes catalogue.json and catalogue.html there. Wheels are read and checked; nothing of them is
    imported. What has not changed is taken from the former catalogue.
    """
    from redhost_index.catalogue import write_catalogue

    trusted = chosen_keys(keys)
    with bar("catalogue") as progress:
        done = write_catalogue(folder, keys=trusted, simple=simple, progress=progress)
    if as_json:
        print_json(done)
        return
    for file, reason in done.refused.items():
        click.echo(f"refused    {file}: {reason}")
    click.echo(
        f"{_many(done.versions, 'version')}, {done.experts} of experts, {done.unchanged} "
        f"unchanged, and {_many(done.others, 'other wheel')} in {done.folder}"
    )
    if simple:
        click.echo(f"{_many(done.projects, 'project')} in {folder / 'simple'}, for --index-url")
    if not done.experts:
        click.echo("no wheel here has an expert: 'redhost pack FOLDER' makes one", err=True)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="WORD…")
@click.option("--index-url", metavar="URL", help="Search the catalogue of this index.")
@click.option(
    "--catalogue", "file", metavar="FILE", help="Search this catalogue.json, or that of a folder."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=SHOWN,
    show_default=True,
    help="Most matches to print.",
)
@_timeout
@home_option
@json_option("list[redhost_index.find.Found]")
def search(
    *,
    words: tuple[str, ...],
    index_url: str | None,
    file: str | None,
    limit: int,
    timeout: float,
    home: Path | None,
    as_json: bool,
) -> None:
    """Find experts of an index that have every WORD.

    The words are looked for in id, domain, labels, package, question and backbone. Without an
    option the catalogue of the current folder is searched.
    """
    from redhost.registry.errors import UsageError
    from redhost.registry.queries.settings import resolve_home
    from redhost_index.find import search as find
    from redhost_index.reading import catalogue_at

    if index_url is not None and file is not None:
        raise UsageError(
            "two places are given", expected="--index-url or --catalogue", found="both"
        )
    listed = catalogue_at(index_url or file or ".", timeout=timeout)
    found = find(listed, words, home=resolve_home(home))
    if as_json:
        print_json(found[:limit])
    else:
        _print_found(found, limit)
    if not found:
        sys.exit(1)


@click.command()
@_index_url
@_find_links
@_timeout
@home_option
@json_option("redhost_index.outdated.Outdated")
def outdated(
    *,
    index_url: str | None,
    find_links: str | None,
    timeout: float,
    home: Path | None,
    as_json: bool,
) -> None:
    """Show which newer versions there are of what is composed.

    Each expert is looked for where the lock says that it came from; all else in the index that you
    set for pip. Names what fits the backbone, and what was yanked or revoked.
    """
    from redhost.registry.queries.settings import resolve_home
    from redhost_index.outdated import outdated as compare

    place = _one_place(index_url, find_links)
    seen = compare(resolve_home(home), place=place, timeout=timeout)
    if as_json:
        print_json(seen)
    else:
        _print_outdated(seen)
    if any(one.problem for one in seen.packages):
        sys.exit(1)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID…]")
@_index_url
@_find_links
@_timeout
@key_option
@click.option("--dry-run", is_flag=True, help="Compose and judge; change nothing.")
@click.option("--keep-going", is_flag=True, help="Upgrade the others if one is refused.")
@tolerance_option
@click.option("--accept", is_flag=True, help="Publish even if a domain loses more than that.")
@home_option
@device_option
@json_option("redhost_index.upgrade.Upgrades")
def upgrade(
    *,
    ids: tuple[str, ...],
    index_url: str | None,
    find_links: str | None,
    timeout: float,
    keys: tuple[str, ...],
    dry_run: bool,
    keep_going: bool,
    tolerance: float | None,
    accept: bool,
    home: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Compose the newest fitting versions of all experts, or of those with an ID.

    All are composed at once, judged, installed and published as one generation. If one is refused,
    nothing changes; with --keep-going the next lower version is tried. Revoked ones are not taken.
    If it is killed, the next 'redhost upgrade' or 'redhost sync' finishes its work.
    """
    from redhost.registry.queries.settings import resolve_home
    from redhost_index.upgrade import UpgradeOptions
    from redhost_index.upgrade import upgrade as take

    place, trusted = _one_place(index_url, find_links), chosen_keys(keys)
    with bar("upgrade") as progress:
        options = UpgradeOptions(
            place=place,
            timeout=timeout,
            keys=trusted,
            dry_run=dry_run,
            keep_going=keep_going,
            tolerance=tolerance,
            accept=accept,
            device=device,
            progress=progress,
        )
        done = take(resolve_home(home), ids, options)
    if as_json:
        print_json(done)
    else:
        _print_upgrades(done)
    if done.refused:
        sys.exit(1)


def _one_place(index_url: str | None, find_links: str | None) -> str | None:
    from redhost.registry.errors import UsageError

    if index_url is not None and find_links is not None:
        expected = "--index-url or --find-links"
        raise UsageError("two places are given", expected=expected, found="both")
    return index_url or find_links


def _many(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_FITS = {True: "fits", False: "does not fit", None: "not known"}


def _print_found(found: tuple[Found, ...], limit: int) -> None:
    """Print the result of a `search`."""
    from redhost.commands.tables import table
    from redhost.registry.errors import one_line

    if not found:
        click.echo("no expert has all these words; with fewer, or none, more are listed", err=True)
        return
    rows = [
        (
            one_line(x.id),
            one_line(f"{x.dist} {x.version}"),
            x.domain[:80],
            one_line(", ".join(x.labels[:4])) + (f", … ({x.label_count})" * (x.label_count > 4)),  # noqa: PLR2004
            "" if x.accuracy is None else f"{x.accuracy:.3f}",
            _FITS[x.fits] if x.revoked is None else "revoked",
        )
        for x in found[:limit]
    ]
    head = ("expert", "package", "domain", "labels", "accuracy", "backbone")
    of = "" if len(found) <= limit else f"{limit} of "
    title = of + _many(len(found), "expert")
    table(title, head, rows, whole=("package",))


def _print_outdated(seen: Outdated) -> None:
    """Print the result of `outdated`."""
    for warning in seen.warnings:
        click.echo(f"warning    {warning}", err=True)
    lines = [line for one in seen.packages for line in _lines_of(one)]
    for line in lines:
        click.echo(line)
    compared = [one for one in seen.packages if one.listed]
    if compared and not lines:
        click.echo(f"none of {len(compared)} packages is outdated")
    _print_others(seen.packages)


def _print_others(packages: Sequence[Standing]) -> None:
    """Print which packages were not compared; one line for each reason."""
    others = dict[str, list[str]]()
    for one in (one for one in packages if not one.listed):
        unknown = "no lock records an index: name one with --index-url, or --find-links FOLDER"
        reason = one.problem or (f"not at {one.source}" if one.source else unknown)
        others.setdefault(reason, []).append(one.id)
    for reason, ids in others.items():
        named = ", ".join(ids[:NAMED]) + (", …" if len(ids) > NAMED else "")
        click.echo(f"not compared: {_many(len(ids), 'package')} ({named}): {reason}")


def _lines_of(one: Standing) -> list[str]:
    """Return what is worth knowing of a package."""
    name = one.dist if one.id == one.dist else f"{one.id} ({one.dist})"
    lines = list[str]()
    if one.status:
        why = f": {one.status_reason}" if one.status_reason else ""
        lines.append(f"{name}: {one.status} at {one.source}{why}")
    for word, reason in (("revoked", one.revoked), ("yanked", one.yanked)):
        if reason is not None:
            why = f": {reason}" if reason else ""
            lines.append(f"{name} {one.version}: {word}{why}; next: {_next_step(one)}")
    for newer in one.newer:
        unknown = "not known" if one.kind == "expert" else "newer"
        state = unknown if newer.fits is None else _FITS[newer.fits]
        why = f": {newer.why}" if newer.why else ""
        for word, reason in (("yanked", newer.yanked), ("revoked", newer.revoked)):
            if reason is not None:
                state, why = word, f": {reason}" if reason else ""
        lines.append(f"{name} {one.version} → {newer.version}  {state}{why}")
    return lines


def _next_step(one: Standing) -> str:
    """Return what to do about a version in use that is yanked or revoked."""
    if one.kind != "expert":
        return f"install another version of {one.dist}"
    if one.newest:
        return f"'redhost upgrade {one.id}'"
    place = ""
    if one.source:
        kind = "--index-url" if "://" in one.source else "--find-links"
        place = f" {kind} {shlex.quote(one.source)}"
    other = f"'redhost add {one.dist}==VERSION{place}'"
    return (
        f"{other}, or 'redhost recompose' goes on without it" if one.revoked is not None else other
    )


def _print_upgrades(done: Upgrades) -> None:
    """Print the result of an `upgrade`."""
    from redhost.commands.receipts import print_receipt

    if done.resumed:
        click.echo("finished what was cut short")
    for one in done.refused:
        click.echo(f"refused    {one.id} {one.version}: {one.reason}")
    for receipt in done.receipts.values():
        print_receipt(receipt)
    word = "to upgrade" if done.dry_run else "upgraded  "
    for step in done.upgraded:
        click.echo(f"{word} {step.id} {step.before} → {step.version} of {step.source}")
    for left in done.left:
        click.echo(f"left       {left.id} {left.version}: {left.reason}")
    for staying in done.staying:
        click.echo(f"stays      {staying.id} {staying.version}: {staying.reason}")
    if not done.upgraded and not done.refused:
        click.echo("nothing to upgrade: nothing changed")
