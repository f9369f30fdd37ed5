"""Commands about packages: list-experts, enable, disable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import (
    backbone_option,
    composition_options,
    home_option,
    json_option,
    print_json,
)
from .tables import table

if TYPE_CHECKING:
    from ..registry.environment.status import PackageStatus


@click.command("list-experts")
@composition_options
@backbone_option
@click.option("--all", "everything", is_flag=True, help="Also list those for other backbones.")
@json_option("list[registry.environment.status.PackageStatusJson]")
def list_experts(
    *, home: Path | None, backbone: str | None, everything: bool, as_json: bool
) -> None:
    """List installed experts with their state. Nothing of them is imported.

    Experts of a named question have their state in that question. Experts for other backbones are
    counted in one line; --all lists them, and --json always does.
    """
    from ..registry.environment.extras import how_to_get_expert
    from ..registry.queries.inventory import take_inventories
    from ..registry.queries.settings import resolve_home
    from .plugins import untrusted_maker

    inventories = take_inventories(resolve_home(home), backbone=backbone).values()
    listed = [x for inventory in inventories for x in inventory.statuses]
    if as_json:
        print_json([x.to_json() for x in listed])
        return
    if not listed:
        example = how_to_get_expert(next((x.backbone.id for x in inventories if x.backbone), None))
        click.echo(f"no experts are installed; for example: {example}")
        return
    for problem in {str(x.problem): None for x in inventories if x.problem and x.statuses}:
        click.echo(f"redhost: {problem}", err=True)
    keys = ["id", "dist", "version", "state", "form", "rank", "writes", "backbone"]
    others = [] if everything else [x for inventory in inventories for x in inventory.elsewhere]
    shown = [x for x in listed if x not in others]
    if any(x.question for x in shown):
        keys.append("question")
    if shown:
        table("experts", keys, [_row(x, keys) for x in shown], whole=("dist",))
    for x in shown:
        if x.code is not None:
            click.echo(f"{x.name}: {x.code}: {x.reason}. {x.hint}")
        elif x.manifest and (dist := untrusted_maker(x.manifest.form)):
            click.echo(f"{x.name}: its form needs 'redhost trust {dist}', of code you trust")
    if others:
        click.echo(
            f"{len(others)} more for other backbones: "
            + ", ".join(sorted({x.manifest.backbone.name for x in others if x.manifest}))
            + ". All of them: --all"
        )


def _row(status: PackageStatus, keys: Sequence[str]) -> list[object]:
    cells = dict(status.to_json())
    if status.package.editable:
        cells["version"] = f"{status.package.version} (editable)"
    return [cells[key] for key in keys]


@click.command()
@click.argument("expert_id")
@home_option
def disable(*, expert_id: str, home: Path | None) -> None:
    """Exclude an installed expert from compositions."""
    _switch(expert_id, home, on=False)


@click.command()
@click.argument("expert_id")
@home_option
def enable(*, expert_id: str, home: Path | None) -> None:
    """Include a disabled expert again."""
    _switch(expert_id, home, on=True)


def _switch(expert_id: str, home: Path | None, *, on: bool) -> None:
    from ..registry.errors import UnknownNameError
    from ..registry.home.questions import home_of, option
    from ..registry.queries.inventory import take_inventory
    from ..registry.queries.settings import disabled_names, resolve_home, set_disabled

    where = resolve_home(home)
    disabled, inventory = disabled_names(where), take_inventory(where)
    statuses = inventory.statuses + inventory.other_questions
    names = {x.package.dist for x in statuses} | {x.id for x in statuses if x.id} | disabled
    if expert_id not in names:
        raise UnknownNameError("expert", expert_id, names)
    # The home may be mistyped.
    place = "" if (where / "store").is_dir() else f": nothing was ever composed in {where}"
    changed = set_disabled(where, expert_id, to=not on)
    word = "enabled" if on else "disabled"
    state = f"{expert_id} {word}" if changed else f"{expert_id} was {word} already"
    click.echo(f"{state}{place}")
    if changed:
        question = next((x.question for x in statuses if expert_id in {x.id, x.package.dist}), None)
        click.echo(f"next: redhost recompose{option(home_of(where, question))}")
    still = {x.package.dist for x in statuses if on and x.id == expert_id} & disabled
    for dist in sorted(still - {expert_id}):
        click.echo(f"{dist} is disabled by its own name: redhost enable {dist}{option(where)}")
