"""`redhost explain` and `redhost report`. Everything heavy is imported inside commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redhost.commands.common import json_option, print_json

if TYPE_CHECKING:
    from redhost_report.explain import Explanation
    from redhost_report.words import WordEvidence

__all__ = ["explain", "report"]

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)

home_option = click.option(
    "--home", type=FOLDER, envvar="REDHOST_HOME", help="State folder (default: .redhost here)."
)
question_option = click.option(
    "--question", metavar="NAME", help="The named question that this is about."
)
device_option = click.option("--device", help="Where the backbone runs, e.g. cpu or cuda.")
force_option = click.option("--force", is_flag=True, help="Replace a page that is there.")
words_option = click.option(
    "--words",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="The most words that are shown for an answer, and as many against it.",
)


@click.command()
@click.argument("texts", nargs=-1, required=True)
@home_option
@question_option
@device_option
@words_option
@click.option("--html", "page", type=FILE, help="Write a page that loads nothing.")
@force_option
@json_option("list[redhost_report.explain.Explanation]")
def explain(
    *,
    texts: tuple[str, ...],
    home: Path | None,
    question: str | None,
    device: str | None,
    words: int,
    page: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Explain the answers to TEXTS (or lines of standard input, with -).

    Weights, every expert's own answer, the words for and against it, the nearest rows of cards, and
    why a text is declined.
    """
    import redhost
    from redhost_report import explain as explaining
    from redhost_report.page import explanation_page

    _require_free(page, force=force)
    lines = [x for t in texts for x in (sys.stdin.read().splitlines() if t == "-" else [t])]
    host = redhost.Host.open(home, question=question, device=device)
    written = [x for x in lines if x.strip()]
    if not written:
        raise redhost.UsageError(
            "nothing to explain",
            expected="a text that is not blank",
            found=f"{len(lines)} blank lines" if lines else "no lines",
            hint="Give a text, or '-' and lines on standard input.",
        )
    found = explaining.explain(host, written, words=words)
    if page is not None:
        _write(page, explanation_page(found))
    if as_json:
        print_json(found)
    elif page is not None:
        click.echo(f"{page}: {len(found)} text{'' if len(found) == 1 else 's'}")
    else:
        for one in found:
            _print(one)


@click.command()
@click.argument("file", type=FILE)
@home_option
@question_option
@device_option
@click.option("--no-evaluation", is_flag=True, help="Leave the backbone's held-out rows alone.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(
    *,
    file: Path,
    home: Path | None,
    question: str | None,
    device: str | None,
    no_evaluation: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Document the current generation in FILE: one self-contained page.

    Its experts, the digests in its receipt, and its accuracy on the backbone's held-out rows.
    """
    import redhost
    from redhost_report import report as reporting
    from redhost_report.page import report_page

    _require_free(file, force=force)
    host = redhost.Host.open(home, question=question, device=device)
    found = reporting.report(host, evaluate=not no_evaluation)
    _write(file, report_page(found))
    if as_json:
        print_json(found)
    else:
        click.echo(f"{file}: generation {found.number}, {len(found.members)} experts")


def _require_free(file: Path | None, *, force: bool) -> None:
    """Require, before anything is computed, that no file is replaced by accident."""
    import redhost

    if file is not None and file.exists() and not force:
        raise redhost.UsageError(
            f"{file} is there already",
            expected="a new file, or --force",
            found=f"{file.stat().st_size:,} bytes",
            hint="Replace it with --force, or choose another name.",
        )


def _write(file: Path, page: str) -> None:
    import redhost

    try:
        file.write_text(page, "utf-8")
    except OSError as e:
        raise redhost.UsageError(f"cannot write {file}", found=e.strerror or str(e)) from e


def _print(one: Explanation) -> None:
    sure = "" if one.probability is None else f"  (p = {one.probability:.3f})"
    click.echo(f"{one.input} → {one.label}{sure}")
    if one.declined is not None:
        click.echo(f"  declined: {one.declined}")
    for column, weight in one.weights.items():
        own = one.by_expert.get(column)
        line = f"  {column:<12} {weight:4.2f} {'█' * round(20 * weight):<20}"
        if own is not None:
            p = "" if own.probability is None else f"  (p = {own.probability:.3f})"
            line += f" → {own.label}{p}{'  declined' if own.declined else ''}"
        click.echo(line.rstrip())
    for evidence in one.words:
        _print_words(evidence)
    click.echo("  nearest rows of cards")
    for near in one.nearest:
        text = near.text if near.text is not None else "(a vector, or the mean of vectors)"
        click.echo(f"  {near.similarity:6.3f}  {near.expert:<12} {text} → {near.label}")


def _print_words(evidence: WordEvidence) -> None:
    click.echo(f"  {evidence.sentence} (log-odds {evidence.log_odds:+.2f})")
    for word in evidence.words:
        click.echo(f"  {word.log_odds:+6.2f}  {' | '.join(word.written)}")
    click.echo(f"  {evidence.other_words:+6.2f}  (other words)")
    click.echo(f"  {evidence.encoder:+6.2f}  (the encoder)")
