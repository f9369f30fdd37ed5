"""Commands that rebuild a project from its lock: sync, export-wheels."""

from __future__ import annotations

from functools import cache, partial
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
)

if TYPE_CHECKING:
    from redhost_sync.export import Exported
    from redhost_sync.synchronise import Synchronised

SECONDS = 30.0


@click.command()
@click.option(
    "--from",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    help="Take wheels from this folder alone; a backbone's model that it lacks, from pip's index.",
)
@click.option("--index-url", metavar="URL", help="Take wheels from this index alone.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long an index may be silent.",
)
@key_option
@click.option("--dry-run", is_flag=True, help="Obtain, check and list; change nothing.")
@home_option
@device_option
@json_option("redhost_sync.synchronise.Synchronised")
def sync(
    *,
    folder: str | None,
    index_url: str | None,
    timeout: float,
    keys: tuple[str, ...],
    dry_run: bool,
    home: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Make environment and compositions what the project's locks name.

    Every wheel is compared with the lock before anything is installed; plugins with their digest
    too. If anything fails, nothing changes. If it is killed, the next 'redhost sync' finishes its
    work. Experts that no lock names stay, unless they were composed here and the lock has them no
    more.
    """
    from redhost.registry.errors import UsageError
    from redhost.registry.queries.settings import resolve_home
    from redhost_sync.sources import default_index, source_at
    from redhost_sync.synchronise import synchronise

    if folder is not None and index_url is not None:
        raise UsageError("two sources are given", expected="--from or --index-url", found="both")
    place = folder or index_url
    given = () if place is None else (source_at(place, timeout=timeout),)
    with bar("sync") as progress:
        done = synchronise(
            resolve_home(home),
            given,
            cache(partial(default_index, timeout=timeout)),
            keys=chosen_keys(keys),
            dry_run=dry_run,
            device=device,
            progress=progress,
        )
    if as_json:
        print_json(done)
    else:
        _print(done)


@click.command("export-wheels")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--only-named",
    is_flag=True,
    help="Leave out packages of other projects, such as torch; then pip takes them from an index.",
)
@click.option(
    "--signed",
    metavar="FOLDER",
    help="Take signed wheels from this folder (default: from where the lock says).",
)
@home_option
@json_option("redhost_sync.export.Exported")
def export_wheels(
    *, folder: Path, only_named: bool, signed: str | None, home: Path | None, as_json: bool
) -> None:
    """Write wheels of all that the project's locks need into FOLDER.

    They are packed from what is installed, with the sha256 of each and the routers' weights; signed
    ones are their authors' wheels with their signatures. Then 'pip install redhost[sync] --no-index
    --find-links FOLDER' (with signed wheels redhost[sync,sign]) and 'redhost sync --from FOLDER'
    rebuild the project without a network.
    """
    from redhost.registry.queries.settings import resolve_home
    from redhost_sync.export import export, size_line
    from redhost_sync.sources import source_at

    done = export(
        resolve_home(home),
        folder,
        dependencies=not only_named,
        originals=None if signed is None else source_at(signed),
        announce=lambda sizes: click.echo(size_line(sizes), err=True),
    )
    for dist, reason in done.unsigned.items():
        advice = f"Export again with '--signed FOLDER' that has the wheel of {dist} and its .sig."
        click.echo(f"not signed: {dist}: {reason}; 'sync' with keys refuses it. {advice}", err=True)
    if as_json:
        print_json(done)
    else:
        _print_exported(done)


def _print(done: Synchronised) -> None:
    """Print the result of a `sync`."""
    words = {"install": "installed", "change": "changed", "remove": "uninstalled"}
    if done.dry_run:
        words = {"install": "to install", "change": "to change", "remove": "to uninstall"}
    if done.resumed:
        click.echo("finishes what was cut short" if done.dry_run else "finished what was cut short")
    for step in done.steps:
        before = f" (from {step.before})" if step.action == "change" else ""
        source = f" of {step.source}" if step.source else ""
        click.echo(f"{words[step.action]:<12} {step.dist} {step.version}{before}{source}")
        if step.also_for:
            listed = ", ".join(step.also_for)
            click.echo(f"{'':<12} no lock names {listed}, made for the present one: cannot compose")
    for staying in done.staying:
        click.echo(f"{'stays':<12} {staying.dist}, which no lock names: {staying.reason}")
    for question in done.composed:
        name = f"question {question!r}" if question else "the default question"
        now = "to compose" if done.dry_run else f"generation {done.generations[question]}"
        click.echo(f"{now:<12} {name}")
    if not done.steps and not done.composed:
        click.echo("all is as the lock names it: nothing changed")


def _print_exported(done: Exported) -> None:
    """Print the result of an `export-wheels`."""
    for entry in done.wheels:
        click.echo(f"{entry.sha256[:12]}  {entry.file}")
    click.echo(f"{len(done.wheels)} wheels and {done.routers} routers in {done.folder}")
