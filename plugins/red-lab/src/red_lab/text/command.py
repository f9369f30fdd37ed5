"""The command `redhost lab text`. Torch is imported only when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from red_lab.options import WORK, out_option, require_scikit_learn, seeds_option
from red_lab.readme import refresh_here
from red_lab.text.corpora import CORPORA

__all__ = ["text"]


@click.command()
@click.argument("corpora", nargs=-1, type=click.Choice(list(CORPORA)))
@click.option(
    "--encoder",
    type=click.Choice(["minilm", "mpnet", "smollm2"]),  # `ENCODERS`
    default="minilm",
    show_default=True,
    help="What reads the texts.",
)
@seeds_option(3)
@click.option(
    "--deals",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="In how many ways labels are dealt to teams, to see which newcomers are let in.",
)
@click.option("--curve", is_flag=True, help="Also measure with fewer rows a team.")
@click.option(
    "--adapters",
    is_flag=True,
    help="Also train adapters inside the encoder, and judge them beside heads.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(
        ["systems", "curve", "probabilities", "noise", "adapters", "joins"]  # `PARTS`
    ),
    help="Measure these alone, and keep what the page has of the others.",
)
@click.option("--validation", is_flag=True, help="Judge on training rows set aside.")
@out_option("text")
@WORK
def text(
    *,
    corpora: tuple[str, ...],
    encoder: str,
    seeds: int,
    deals: int,
    curve: bool,
    adapters: bool,
    parts: tuple[str, ...],
    validation: bool,
    out: Path,
    work: Path,
) -> None:
    """Compare teams' experts on real texts with pooled training.

    Measures all corpora, unless some are named.
    """
    require_scikit_learn()
    from red_lab.text.run import PARTS, Extent, run

    left_out = {"curve": not curve, "adapters": not adapters, "joins": not deals}
    chosen = parts or [p for p in PARTS if not left_out.get(p)]
    written = run(
        corpora or list(CORPORA),
        Extent(encoder=encoder, parts=chosen, seeds=seeds, deals=deals, validation=validation),
        out=out,
        work=work / "text",
    )
    click.echo(written)
    refresh_here()
