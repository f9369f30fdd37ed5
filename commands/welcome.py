"""`redhost` without arguments: what is installed, what is composed, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..registry.environment.extras import how_to_get_expert
from ..registry.package.forms import TASKS

if TYPE_CHECKING:
    from ..registry.home.composition import Composition
    from ..registry.package.manifest import BackboneManifest


def welcome() -> None:
    """Print in ten lines what is installed and composed, and what to type next."""
    from ..registry.home.questions import composed_questions
    from ..registry.queries.inventory import current_record, questions_of, take_inventory
    from ..registry.queries.settings import resolve_home

    home = resolve_home()
    record, named = current_record(home), composed_questions(home)
    inventory = take_inventory(home, backbone=record.backbone.id if record else None)
    others = inventory.elsewhere
    good = [x.id for x in inventory.statuses if x.code is None and x.id]
    bad = [x for x in inventory.statuses if x.code is not None and x not in others]
    elsewhere = f"{len(others)} for other backbones: redhost list-experts --all"
    questions = {
        **{q: f"next: redhost recompose --question {q}" for q in questions_of(inventory) if q},
        **dict.fromkeys(named, "composed"),
    }
    titled = {
        "backbone": [
            inventory.backbone.id if inventory.backbone else f"none ({inventory.problem})"
        ],
        "experts": [", ".join(good) or "none"],
        "not usable": [", ".join(f"{x.name} ({x.code})" for x in bad)] if bad else [],
        "elsewhere": [elsewhere] if others else [],
        "composed": [f"nothing yet in {home}" if record is None else _composed(record)],
        "question": [f"{question} ({state})" for question, state in sorted(questions.items())],
    }
    click.echo("redhost: experts as packages on one shared, frozen backbone")
    for title, lines in titled.items():
        for line in lines:
            click.echo(f"  {title:<10} {line}")
    click.echo("next: " + _advice(inventory.backbone, bool(good), bool(record or named)))
    click.echo("all commands: redhost --help")


def _composed(record: Composition) -> str:
    members = ", ".join(m.id for m in record.experts)
    return f"generation {record.number}: {members} ({record.router.kind})"


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
