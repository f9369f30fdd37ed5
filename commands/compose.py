"""Commands of the host itself: recompose, predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from .common import (
    backbone_option,
    bar,
    cut_texts,
    device_option,
    engine_options,
    home_option,
    json_option,
    open_host,
    print_json,
    tolerance_option,
    typed,
)
from .receipts import print_receipt

if TYPE_CHECKING:
    from ..core.composition.options import RecomposeKeywords


@click.command()
@home_option
@backbone_option
@click.option(
    "--router",
    metavar="KIND[:OPTIONS]",
    help="evidence, quadratic, statistics, centroid, linear, mlp, topk:k=2, shortlist, hard, "
    "attention, or a plugin's; robust, causal and causal-mixture, which need cards of texts; "
    "blend, which weighs every text alike: a baseline, refused where domains differ.",
)
@click.option(
    "--level",
    type=click.Choice(["zero", "row", "full"]),
    help="How much of the router to retrain (default: full).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Where randomness comes from.")
@tolerance_option
@click.option("--accept", is_flag=True, help="Publish even if a domain loses more than that.")
@click.option("--locked", is_flag=True, help="Refuse unless what is installed is what is locked.")
@click.option("--dry-run", is_flag=True, help="Do everything but publish.")
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

    What is published is a generation; the receipt says what changed.
    """
    host = open_host(home, backbone=backbone, device=device, engine=engine, workers=workers)
    with bar("recompose") as keywords["progress"]:
        receipt = host.recompose(locked=locked, dry_run=dry_run, **keywords)
    if as_json:
        print_json(receipt)
    else:
        print_receipt(receipt)


@click.command()
@click.argument("texts", nargs=-1, required=True)
@home_option
@device_option
@json_option("list[core.model.composed.Answer]")
def predict(
    *, texts: tuple[str, ...], home: Path | None, device: str | None, as_json: bool
) -> None:
    """Answer TEXTS (or lines of standard input, with -)."""
    lines = [x for t in texts for x in (typed(t).splitlines() if t == "-" else [typed(t)])]
    answers = open_host(home, device=device).predict([x for x in lines if x.strip()])
    if as_json:
        print_json(answers)
        return
    if cut := cut_texts([a.cut for a in answers]):
        click.echo(cut, err=True)
    for answer in answers:
        sure = "" if answer.probability is None else f"  (p = {answer.probability:.3f})"
        click.echo(f"{answer.input} → {answer.label}{sure}")
        for column, weight in sorted(answer.weights.items(), key=lambda pair: -pair[1]):
            if weight >= 0.005:  # noqa: PLR2004  (what two digits can show)
                click.echo(f"  {column:<12} {weight:4.2f} {'█' * round(30 * weight)}")


COMMANDS = (recompose, predict)
