"""`redhost` without arguments: what is installed, what is composed, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..registry.environment.extras import how_to_get_expert
from ..registry.package.forms import TASKS

if TYPE_CHECKING:
    from ..registry.package.manifest import BackboneManifest


def welcome() -> None:
    """Print in ten lines what is installed and composed, and what to type next."""
    from ..registry.home.questions import composed_questions
    from ..registry.queries.inventory import current_record, questions_of, take_inventory
    from ..registry.queries.settings import resolve_home

    home = resolve_home()
    record = current_record(home)
    inventory = take_inventory(home, backbone=record.backbone.id if record else None)
    good = [x.id for x in inventory.statuses if x.code is None and x.id]
    others = inventory.elsewhere
    bad = [x for x in inventory.statuses if x.code is not None and x not in others]
    backbone = inventory.backbone.id if inventory.backbone else f"none ({inventory.problem})"
    click.echo("redhost: experts as packages on one shared, frozen backbone")
    click.echo(f"  backbone   {backbone}")
    click.echo(f"  experts    {', '.join(good) or 'none'}")
    if bad:
        click.echo(f"  not usable {', '.join(f'{x.name} ({x.code})' for x in bad)}")
    if others:
        click.echo(f"  elsewhere  {len(others)} for other backbones: redhost list-experts --all")
    if record is None:
        click.echo(f"  composed   nothing yet in {home}")
    else:
        members = ", ".join(m.id for m in record.experts)
        click.echo(f"  composed   generation {record.number}: {members} ({record.router.kind})")
    named = composed_questions(home)
    for question in sorted({*named, *filter(None, questions_of(inventory))}):
        state = (
            "composed" if question in named else f"next: redhost recompose --question {question}"
        )
        click.echo(f"  question   {question} ({state})")
    composed = record is not None or bool(named)
    click.echo("next: " + _advice(inventory.backbone, bool(good), composed))
    click.echo("all commands: redhost --help")


def _advice(backbone: BackboneManifest | None, installed: bool, composed: bool) -> str:
    if composed:
        return f"{_question(backbone)}   (after changes: redhost recompose)"
    if installed:
        return "redhost recompose"
    return how_to_get_expert(backbone.id if backbone else None)


def _question(backbone: BackboneManifest | None) -> str:
    """Return a command to try; a suitable text is known only for the demo's backbone."""
    spec = None if backbone is None else TASKS.get(backbone.task)
    if spec is not None and spec.generates:
        return 'redhost generate "PROMPT"'
    demo = backbone is not None and backbone.id == "tiny"
    return 'redhost predict "What is 37 plus 12?"' if demo else 'redhost predict "TEXT"'
