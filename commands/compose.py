"""Commands on the composition itself: recompose, predict, route."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from ..core.types import MAX_SEED
from .common import (
    Share,
    backbone_option,
    bar,
    composition_options,
    cut_texts,
    device_option,
    engine_options,
    json_option,
    open_host,
    print_json,
    tolerance_option,
    typed,
)
from .receipts import print_receipt
from .tables import NO_TERMINAL

if TYPE_CHECKING:
    from ..core.composition.options import RecomposeKeywords
    from ..core.model.composed import Answer
    from ..core.model.each import ExpertAnswer
    from ..core.model.questions import Questions
    from .files import Answered


@click.command()
@composition_options
@backbone_option
@click.option(
    "--router",
    metavar="KIND[:OPTIONS]",
    help="auto (default): evidence, or on wide features ridge or statistics; quadratic, centroid, "
    "linear, mlp, topk:k=2, hard, or a plugin's. With redhost[robust]: shortlist, attention, "
    "robust, and blend, with the same weights for all texts: a baseline, refused if domains "
    "differ. With redhost[generate]: causal and causal-mixture. These two and robust need cards "
    "of texts. With redhost[words]: words, the default where an expert is of the form words.",
)
@click.option(
    "--level",
    type=click.Choice(["zero", "row", "full"]),
    help="How much of the router to retrain (default: full).",
)
@click.option("--seed", type=click.IntRange(0, MAX_SEED), help="Random seed.")
@tolerance_option
@click.option(
    "--decline",
    type=Share(),
    metavar="SHARE",
    help="Decline unfamiliar texts, and with them at most this share of the experts' own, e.g. 5%. "
    "Stays until another is given; 0% declines none.",
)
@click.option(
    "--prior",
    metavar="SHARES",
    help="Expected shares of the experts: cards (default), uniform, live (last estimate of a "
    "server), mail=0.7,news=0.3, or a JSON file. Stays until another is given.",
)
@click.option("--accept", is_flag=True, help="Publish even if a domain loses more than that.")
@click.option("--locked", is_flag=True, help="Refuse if installed packages differ from the lock.")
@click.option("--dry-run", is_flag=True, help="Do everything except publishing.")
@engine_options
@device_option
@json_option("core.receipt.Receipt")
def recompose(
    *,
    home: Path | None,
    backbone: str | None,
    locked: bool,
    dry_run: bool,
    engine: str,
    workers: int,
    device: str | None,
    as_json: bool,
    **keywords: Unpack[RecomposeKeywords],
) -> None:
    """Check the experts, retrain only the router, publish.

    The published composition is a generation; the receipt lists what changed. If nothing did, the
    current generation stays (--locked publishes all the same). Experts of other questions are not
    affected.
    """
    host = open_host(home, backbone=backbone, device=device, engine=engine, workers=workers)
    before = host.generations.current()
    with bar("recompose") as keywords["progress"]:
        receipt = host.recompose(locked=locked, dry_run=dry_run, **keywords)
    if as_json:
        print_json(receipt)
    else:
        print_receipt(receipt, before=before)
        _name_others(host.home)


def _name_others(home: Path) -> None:
    """Print which other questions of installed experts are not up to date."""
    from ..registry.home.questions import home_of, option, question_of
    from ..registry.queries.inventory import installed_manifests, take_status

    if question_of(home) is not None:
        return
    for question in sorted({m.question for _, m in installed_manifests() if m and m.question}):
        status = take_status(home_of(home, question))
        if status.generation is None or status.drift:
            click.echo(
                f"question {question!r} is not up to date: redhost recompose"
                f"{option(home_of(home, question))}"
            )


@click.command()
@click.argument("texts", nargs=-1)
@click.option(
    "--in",
    "source",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Answer the rows of a file: JSON lines, CSV, TSV or Parquet.",
)
@click.option(
    "--out",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the rows with their answers, format by its suffix; continues if interrupted.",
)
@click.option(
    "--text-field", default="text", show_default=True, help="Field with the text of a row."
)
@composition_options
@click.option(
    "--set",
    "sets",
    type=Share(),
    metavar="SHARE",
    help="Answer with a set of labels that contains the right one this often, e.g. 90%.",
)
@click.option("--each", is_flag=True, help="Also show the answer of every expert alone.")
@device_option
@json_option("list[core.model.composed.Answer]")
def predict(
    *,
    texts: tuple[str, ...],
    source: Path | None,
    target: Path | None,
    text_field: str,
    home: Path | None,
    sets: float | None,
    each: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Answer TEXTS, or the rows of a file.

    All composed questions are answered, or only the one given by --question. If one of them is
    damaged, it is reported and the others are answered; the exit code is then not 0.

    A - among TEXTS is replaced by the lines of standard input.
    """
    lines = _lines(texts)
    places = {"TEXTS": bool(texts), "--in": source is not None, "--out": target is not None}
    given = [name for name, there in places.items() if there]
    if given not in (["TEXTS"], ["--in", "--out"]):
        from ..registry.errors import UsageError

        raise UsageError(
            "no texts to answer, or two sources of them",
            expected="TEXTS, or --in and --out",
            found=", ".join(given) or "none",
            hint="Such as: redhost predict 'a text', or --in rows.csv --out answers.csv.",
        )
    model = open_host(home, device=device).side_by_side
    for error in model.damaged.values():
        click.echo(f"redhost: {error}", err=True)
    level = model.levels(sets).get(None)
    if level is not None and model.default is not None:
        for warning in model.default.set_warnings(level):
            click.echo(f"warning    {warning}", err=True)
    if source is not None and target is not None:
        from .files import answer_file

        with bar("predict") as progress:
            rows = progress.stage("rows")
            done = answer_file(
                model, source, target, text=text_field, sets=sets, each=each, progress=rows
            )
        _print_file(model, target, done, as_json=as_json)
    else:
        _print_answers(model.answer(lines, sets=sets, each=each), as_json=as_json)
    if model.damaged:
        sys.exit(max(error.exit_code for error in model.damaged.values()))


def _print_answers(answers: Sequence[Answer], *, as_json: bool) -> None:
    """Print the answers to texts."""
    from ..registry.errors import excerpt

    if as_json:
        print_json(answers)
        return
    if cut := cut_texts([a.cut for a in answers]):
        click.echo(cut, err=True)
    for answer in answers:
        if answer.generation is not None:
            _print_answer(answer, excerpt(answer.input, most=NO_TERMINAL))
        for question, named in answer.named.items():
            _print_answer(named, f"{excerpt(answer.input, most=NO_TERMINAL)} [{question}]")


def _print_answer(answer: Answer, title: str) -> None:
    parts = answer.spans or answer.labels
    # A label may be called none.
    label = answer.label if parts is None else ", ".join(map(str, parts)) or "(no label)"
    click.echo(f"{title} → {label}{_sure(answer)}")
    _print_weights(answer.weights)
    for i, expert_answer in (answer.by_expert or {}).items():
        click.echo(f"  {i:<12} → {expert_answer.label}{_sure(expert_answer)}")


def _print_file(model: Questions, target: Path, done: Answered, *, as_json: bool) -> None:
    """Print a summary of an answered file."""
    if as_json:
        print_json(done)
        return
    if done.cut:
        click.echo(f"{done.cut:,} of {done.rows:,} texts cut after {done.limit} tokens", err=True)
    declined = f", {done.declined:,} declined" if done.declined else ""
    numbers = {"": model.default.generation} if model.default else {}
    numbers |= {f"{name} ": number for name, number in model.generations.items()}
    answered = ", ".join(f"{name}generation {number}" for name, number in numbers.items())
    click.echo(f"{target}: {done.rows:,} rows{declined}, {answered}")


@click.command()
@click.argument("texts", nargs=-1, required=True)
@composition_options
@device_option
@json_option("list[core.model.route.Route]")
def route(*, texts: tuple[str, ...], home: Path | None, device: str | None, as_json: bool) -> None:
    """Show which experts' domains TEXTS belong to.

    A - is replaced by the lines of standard input. No expert is read or run: this is for users
    who run experts with another engine.
    """
    from ..registry.errors import excerpt

    routes = open_host(home, device=device).route(_lines(texts))
    if as_json:
        print_json(routes)
        return
    if cut := cut_texts([r.cut for r in routes]):
        click.echo(cut, err=True)
    for routed in routes:
        click.echo(f"{excerpt(routed.input, most=NO_TERMINAL)} → {routed.expert}")
        _print_weights(routed.weights)


def _lines(texts: tuple[str, ...]) -> list[str]:
    """Return the typed texts; - is replaced by the lines of standard input, without blank ones.

    Raises:
        UsageError: If a typed text is blank: answers would not be in the order of their texts.
    """
    from ..registry.errors import UsageError

    lines = list[str]()
    for place, text in enumerate(texts, start=1):
        if not text.strip():
            raise UsageError(
                f"argument {place} of TEXTS",
                expected="a text",
                found=repr(text)[:40],
                hint="Leave it out.",
            )
        lines += (
            [x for x in typed(text).splitlines() if x.strip()] if text == "-" else [typed(text)]
        )
    return lines


def _sure(answer: Answer | ExpertAnswer) -> str:
    """Return how probable an answer is, and whether its text is declined."""
    sure = "" if answer.probability is None else f"  (p = {answer.probability:.3f})"
    return f"{sure}  declined" if answer.declined else sure


def _print_weights(weights: dict[str, float]) -> None:
    for column, weight in sorted(weights.items(), key=lambda pair: -pair[1]):
        if weight >= 0.005:  # noqa: PLR2004  (the smallest weight visible with two digits)
            click.echo(f"  {column:<12} {weight:4.2f} {'█' * round(30 * weight)}")
