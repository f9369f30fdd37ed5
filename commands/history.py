"""Commands about generations: status, history, rollback, gc."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from .common import composition_options, json_option, print_json
from .tables import table

if TYPE_CHECKING:
    from ..registry.queries.inventory import Drift, HomeStatus

FEW = 10
"""With more generations than this, they are counted instead of listed."""


@click.command()
@composition_options
@json_option("registry.queries.inventory.HomeStatus")
def status(*, home: Path | None, as_json: bool) -> None:
    """Show what is composed, and how installed packages differ."""
    from ..registry.home.questions import nothing_composed, question_of
    from ..registry.queries.inventory import take_status
    from ..registry.queries.settings import resolve_home

    report = take_status(where := resolve_home(home))
    if report.generation is None and question_of(where) and not (where / "redhost.lock").is_file():
        raise nothing_composed(where)
    if as_json:
        print_json(report)
        return
    click.echo("\n".join(_lines(report, where)))
    if step := _next_step(report, where):
        click.echo(f"next: {step}")


def _next_step(report: HomeStatus, where: Path) -> str:
    """Return what to type so that the composition is what is installed; nothing if it is."""
    from ..registry.home.questions import option, root_of

    nothing = report.generation is None and not report.questions
    if not (nothing or report.drift or report.store):
        return ""
    step = f"redhost recompose{option(where)}{_backbone_option(where, report.backbone or 'NAME')}"
    is_gone = any(d.kind in {"missing", "broken"} for d in report.drift) and report.lock is None
    # The lock still names what is gone or broken; without it, recompose withdraws or refuses.
    if is_gone or (nothing and (root_of(where) / "redhost.lock").is_file()):
        step = f"redhost sync{option(root_of(where))}, or {step}"
    if report.back is None or report.newest is not None:
        return step
    return f"{step}   (or redhost rollback{option(where)})"


def _lines(report: HomeStatus, where: Path) -> list[str]:
    """Return what `status` prints, line by line."""
    from ..registry.home.questions import option

    newer = f"redhost rollback {report.newest}{option(where)}"
    left = f"{len(report.leftovers)} of writers that were stopped; the next writer removes them"
    computed = "entries of the {} cache; they are computed again"
    titled = {
        "home": [f"{report.home}{'' if where.is_dir() else '  (not there yet)'}"],
        "generation": [f"{report.generation or 'none'}  (parent {report.parent or 'none'})"],
        "backbone": [report.backbone or "none"],
        "experts": [", ".join(report.experts) or "none"],
        "router": [report.router or "none"],
        "question": [f"{q}: generation {n}" for q, n in (report.questions or {}).items()],
        "drift": [_drifted(difference) for difference in report.drift],
        "lock": [f"{report.lock}: redhost.lock is not this generation's"] if report.lock else [],
        "damaged": [
            *report.store,
            *(f"{n} {computed.format(cache)}" for cache, n in report.damaged.items()),
        ],
        "held": [
            f"generation {x.generation} by process {x.pid} since {x.started}" for x in report.held
        ],
        "leftovers": [left] if report.leftovers else [],
        "older": [f"than generation {report.newest}; forward again: {newer}"] * bool(report.newest),
    }
    return [f"{title:<11} {line}" for title, lines in titled.items() for line in lines]


def _drifted(difference: Drift) -> str:
    """Return a difference between what is locked and what is installed as text."""
    what = "fingerprint" if difference.id == "backbone" else "build"
    now = f"{'' if difference.kind == 'revoked' else 'now '}{difference.installed or '-'}"
    return f"{difference.id}: {difference.kind}, {what} locked {difference.locked or '-'}, {now}"


def _backbone_option(home: Path, name: str) -> str:
    """Return the option that a recompose needs if several backbones are installed, else nothing.

    It needs none if only one is installed, or if a lock or the project names one.
    """
    from ..registry.errors import RedhostError, SettingsError
    from ..registry.package.discover import discover
    from ..registry.queries.settings import choose_backbone, wanted_backbone

    try:
        choose_backbone(discover("backbone"), wanted_backbone(home))
    except RedhostError as e:  # of another kind: recompose reports it
        return f" --backbone {name}" if isinstance(e, SettingsError) else ""
    return ""


@click.command()
@composition_options
@json_option("list[registry.home.composition.Composition]")
def history(*, home: Path | None, as_json: bool) -> None:
    """List published generations."""
    from ..registry.home.generations import Generations
    from ..registry.home.questions import nothing_composed
    from ..registry.queries.inventory import declining
    from ..registry.queries.settings import resolve_home

    generations = Generations(where := resolve_home(home))
    # Not by `current`, which raises if the file is damaged: the list is needed to choose another.
    records = generations.history()
    if not records:
        raise nothing_composed(where)
    if as_json:
        print_json(records)
        return
    pointer = (generations.pointer() or b"").decode("ascii", "replace").strip()
    current = {f"{r.number} {r.digest}": r.number for r in records}.get(pointer)
    rows = [
        (
            f"{r.number} *" if r.number == current else f"{r.number}",
            r.parent or "",
            r.created,
            r.backbone.id,
            " ".join(m.id for m in r.experts),
            f"{r.router.kind}/{r.router.level}{declining(r)}",
            r.router.digest[:12],
        )
        for r in records
    ]
    table(
        "generations",
        ("number", "parent", "created", "backbone", "experts", "router", "router digest"),
        rows,
        whole=("experts", "router digest"),
    )


class RolledBack(TypedDict):
    """The generation that is current again.

    Attributes:
        generation: Its number.
        experts: Ids of its experts.
    """

    generation: int
    experts: list[str]


@click.command()
@click.argument("number", type=int, required=False)
@composition_options
@json_option("commands.history.RolledBack")
def rollback(*, number: int | None, home: Path | None, as_json: bool) -> None:
    """Make an older generation current again.

    By default this is the parent of the current one. It is checked first: all its bytes are read,
    and its plugins must be there and trusted. Nothing is trained, and no plugin is imported.
    """
    from ..registry.environment.trust import require_agreed
    from ..registry.home.generations import Generations
    from ..registry.queries.settings import resolve_home

    record = Generations(resolve_home(home)).rollback(number, require_plugins=require_agreed)
    experts = [m.id for m in record.experts]
    if as_json:
        print_json(RolledBack(generation=record.number, experts=experts))
    else:
        click.echo(f"generation {record.number} is current: {', '.join(experts)}")


@click.command()
@click.option(
    "--keep",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many generations to keep: the current one, its parent, and so on.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@composition_options
@json_option("registry.home.generations.GcReport")
def gc(*, keep: int, dry_run: bool, home: Path | None, as_json: bool) -> None:
    """Remove old generations, and the bytes that only they need.

    The current generation and its ancestors are kept, --keep in all. Generations that a live
    process holds, such as a server, are kept too.
    """
    from ..registry.home.generations import Generations
    from ..registry.queries.settings import resolve_home

    report = Generations(resolve_home(home)).gc(keep, dry_run=dry_run)
    if as_json:
        print_json(report)
        return
    for lease in report.held:
        click.echo(f"kept generation {lease.generation}: process {lease.pid} holds it")
    click.echo(
        f"{'would remove' if dry_run else 'removed'} {_numbered(report.generations)} and "
        f"{len(report.digests)} stored packages, {report.bytes:,} bytes"
    )


def _numbered(numbers: Sequence[int]) -> str:
    """Return generation numbers as readable text."""
    if not numbers:
        return "no generation"
    if len(numbers) > FEW:
        return f"{len(numbers):,} generations, {min(numbers)} to {max(numbers)},"
    noun = "generation" if len(numbers) == 1 else "generations"
    return f"{noun} {', '.join(map(str, numbers))}"
