"""The result of training an expert, printed for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from redhost.commands.common import cut_texts
from redhost.commands.receipts import SHORTLIST, SHOWN
from redhost.commands.tables import table

if TYPE_CHECKING:
    from redhost.registry.package.manifest import CardRef

    from .training.recipe import TrainedProject


def print_trained(trained: TrainedProject) -> None:
    """Print an expert's training data, its accuracy, and the limits of these figures."""
    manifest, splits = trained.manifest, trained.splits
    measured = dict(manifest.training.metrics)
    macro = measured.pop("macro_f1", None)
    counts = splits.label_counts()
    if macro is not None:
        fewest = sorted(counts, key=lambda y: counts[y]["train"])[:SHORTLIST]
        shown = counts if len(counts) <= SHOWN else sorted(fewest)
        part = "card" if _shows_rows(manifest.card) else "aside"
        head = ("label", "train", "valid", f"{part}: fit", f"{part}: gate")
        table("rows by label", head, [(y, *counts[y].values()) for y in shown])
        if len(counts) > SHOWN:
            click.echo(f"{len(counts)} labels, those with the fewest rows are shown")
    metrics = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in measured.items())
    labels = f"{len(manifest.labels)} labels, accuracy " if manifest.labels else ""
    click.echo(
        f"expert {manifest.id!r}: {labels}{metrics}; "
        f"form {manifest.form}, trained on {len(splits.train)} rows, "
        f"{_card(manifest.card, rows=len(splits.rows))}"
    )
    if macro is not None:
        covered = sum(c["valid"] + c["gate"] > 0 for c in counts.values())
        click.echo(
            f"macro F1 {macro:.3f} on rows set aside, which {covered} of {len(counts)} labels have"
        )
    folded = Counter("".join(y.casefold().split()) for y in manifest.labels)
    alike = [repr(y) for y in manifest.labels if folded["".join(y.casefold().split())] > 1]
    one = f"labels that differ in case or blanks alone: {', '.join(alike)}" if alike else ""
    concerns = splits.concerns(gate=manifest.card.gate if _shows_rows(manifest.card) else None)
    for concern in filter(None, (one, *concerns, cut_texts(trained.cuts))):
        click.echo(f"warning    {concern}")


def _card(card: CardRef, *, rows: int) -> str:
    """Return a short description of a card; sums are of all rows, including held-out ones."""
    if _shows_rows(card):
        return f"card {card.kind} ({card.fit} fit, {card.gate} gate)"
    return f"card {card.kind} (sums of all {rows} rows)" if card.file else "no card"


def _shows_rows(card: CardRef) -> bool:
    """Return whether a card has rows to evaluate on; sums have none."""
    return card.kind in {"texts", "vectors"}
