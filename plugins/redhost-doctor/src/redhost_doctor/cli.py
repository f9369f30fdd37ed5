"""`redhost doctor` and `redhost why`. What they need is imported inside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redhost.commands.common import home_option, json_option, print_json

if TYPE_CHECKING:
    from redhost_doctor.why import OnGate, Why

SHOWN = 8
"""The most labels that are shown."""


@click.command()
@click.argument("checks", nargs=-1, metavar="[CHECK]...")
@home_option
@click.option("--deep", is_flag=True, help="Hash every stored and installed byte.")
@json_option("redhost_doctor.doctor.Examination")
def doctor(*, checks: tuple[str, ...], home: Path | None, deep: bool, as_json: bool) -> None:
    """Examine the environment and the home, and say how to mend what is wrong.

    Each line is ok, a warning or a failure, and below it stands the command that mends it, or the
    next one where a recompose decides. The exit code is 1 if something fails. Nothing is changed,
    and nothing is fetched. With names of checks, the first words of these lines, only those are
    run.
    """
    from redhost.registry.home.questions import root_of
    from redhost.registry.queries.settings import resolve_home
    from redhost_doctor.doctor import examine

    examination = examine(root_of(resolve_home(home)), checks=checks, deep=deep)
    if as_json:
        print_json(examination)
    else:
        for finding in examination.findings:
            click.echo(f"{finding.check:<13} {finding.state:<5} {finding.text}")
            if finding.mend:
                click.echo(f"{'':<14}mend: {finding.mend}")
            if finding.next:
                click.echo(f"{'':<14}next: {finding.next}")
    if not examination.ok:
        sys.exit(1)


@click.command()
@click.argument("expert_id", metavar="ID")
@home_option
@json_option("redhost_doctor.why.Why")
def why(*, expert_id: str, home: Path | None, as_json: bool) -> None:
    """Say where the expert ID came from, whether it answers, and if not, why.

    Also by the name of its distribution. Its package, who signed it, what it answers and how well,
    since when it is in, its earlier builds, and the next step.
    """
    from redhost.registry.home.questions import root_of
    from redhost.registry.queries.settings import resolve_home
    from redhost_doctor.why import why as explain

    answer = explain(root_of(resolve_home(home)), expert_id)
    if as_json:
        print_json(answer)
        return
    for name, text in _lines(answer):
        click.echo(f"{name:<12}{text}")
    if answer.command:
        click.echo(f"next: {answer.command}")


def _lines(answer: Why) -> Iterator[tuple[str, str]]:
    """Yield the lines of a page on an expert."""
    yield answer.id, answer.state + (f": {answer.reason}" if answer.reason else "")
    if answer.question:
        yield "question", answer.question
    for package in answer.installed:
        yield "installed", f"{package.dist} {package.version} from {package.origin}"
    if (entry := answer.membership) is not None:
        since = f"{'' if entry.is_exact else 'before '}generation {entry.since}"
        build = "" if entry.build_since == entry.since else f", this build {entry.build_since}"
        yield "composed", f"{entry.dist} {entry.version} in generation {entry.generation}"
        yield "since", f"{since} of {entry.created}{build}"
        wheel = f"sha256:{entry.wheel[:12]}…" if entry.wheel else "none, by pip"
        yield "wheel", wheel
        yield "signed by", f"sha256:{entry.signer[:12]}…" if entry.signer else "no key was required"
    if (offer := answer.offer) is not None:
        labels = ", ".join(offer.labels[:SHOWN])
        more = f" and {len(offer.labels) - SHOWN} more" if len(offer.labels) > SHOWN else ""
        yield "domain", offer.domain
        yield "labels", f"{labels}{more}" if labels else "those of the backbone"
        yield "form", f"{offer.form}, rank {offer.rank}, writes {offer.writes}"
        yield "backbone", f"{offer.backbone} (sha256:{offer.fingerprint[:12]}…)"
    if answer.gate is not None:
        yield "gate rows", _gate(answer.gate)
    for earlier in answer.earlier:
        numbers = ", ".join(map(str, earlier.generations))
        yield "earlier", f"{earlier.dist} {earlier.version} in generation {numbers}"


def _gate(gate: OnGate) -> str:
    """Return how an expert does, as a line."""
    numbers = {
        "accuracy": gate.after,
        "before": gate.before,
        "alone": gate.own,
        "mean weight on the gate rows of all experts": gate.weight,
    }
    shown = (f"{name} {x:.3f}" for name, x in numbers.items() if x is not None)
    return ", ".join((str(gate.rows), *shown))
