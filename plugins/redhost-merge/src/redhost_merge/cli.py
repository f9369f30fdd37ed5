"""`redhost merge`: distil a composition into one expert of fixed cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from redhost_author.options import seed_option

from redhost.commands.common import (
    bar,
    composition_options,
    device_option,
    json_option,
    open_host,
    print_json,
)
from redhost.commands.tables import table

if TYPE_CHECKING:
    from redhost_merge.distill import Merged


@click.command()
@click.argument("name")
@click.option(
    "--data",
    metavar="FILE",
    help="Unlabelled texts, one a line (default: the cards' texts and the background card).",
)
@click.option("--rank", type=click.IntRange(min=1), help="R (default: a quarter of the width).")
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Most passes over the inputs.",
)
@click.option(
    "--sharpness",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Radius of sharpness-aware steps; 0 for ordinary ones.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="POINTS",
    help="Points a domain may lose (default: ten, or two gate rows).",
)
@seed_option
@composition_options
@device_option
@json_option("redhost_merge.distill.Merged")
def merge(
    *,
    name: str,
    data: str | None,
    rank: int | None,
    epochs: int,
    sharpness: float,
    tolerance: float | None,
    seed: int,
    home: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Merge the current generation into one expert.

    Makes ./red-expert-NAME, a project like any other, trained to reproduce the composed answers.
    The exit code is 1 if a domain loses more than the tolerance; the project is then kept for
    inspection.
    """
    from redhost.core.training.rows import read_texts

    texts = [r.text for r in read_texts(data)] if data else None  # before torch is imported
    from redhost.registry.home.questions import question_of
    from redhost_merge.distill import DistillSettings, own_texts
    from redhost_merge.distill import merge as fold

    question = question_of(home) if home else None
    settings = DistillSettings(
        rank=rank, epochs=epochs, sharpness=sharpness, seed=seed, question=question
    )
    project = Path(f"red-expert-{name}")
    with bar("merge") as progress:
        host = open_host(home, device=device)
        composed = host.composed
        merged = fold(
            composed,
            own_texts(composed) if texts is None else texts,
            expert_id=name,
            project=project,
            encode=host.encoder(composed, progress=progress),
            settings=settings,
            progress=progress,
        )
    if as_json:
        print_json(merged)
    else:
        _print_merged(merged)
    merged.refuse_loss(tolerance=tolerance)
    if not as_json:
        click.echo(f"next: redhost pack {project}")


def _print_merged(merged: Merged) -> None:
    rows = [(d, f"{merged.before[d]:.3f}", f"{merged.after[d]:.3f}") for d in merged.before]
    title = f"generation {merged.generation} folded into {merged.id!r}, accuracy on gate rows"
    table(title, ("domain", "composition", "merged"), rows)
    whole, one = merged.parameters["composition"], merged.parameters["merged"]
    click.echo(
        f"learnt from {merged.rows} inputs ({merged.declined} declined), on others KL "
        f"{merged.kl:.4f} nats, same label {merged.agreement:.1%}; "
        f"{one:,} parameters for {whole:,} ({one / whole:.1%})"
    )
