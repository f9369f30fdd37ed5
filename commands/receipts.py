"""A receipt, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .common import table

if TYPE_CHECKING:
    from ..core.receipt import Receipt

__all__ = ["points", "print_receipt"]


def print_receipt(receipt: Receipt) -> None:
    """Print what a recompose did, and that nothing else moved."""
    before = receipt.accuracy.before or {}
    rows = [
        (
            i,
            "unchanged" if change.before == change.after else "CHANGED",
            change.after[:12],
            receipt.accuracy.rows.get(i, ""),
            points(before.get(i)),
            points(receipt.accuracy.after.get(i)),
        )
        for i, change in receipt.experts.items()
    ]
    name = "dry run" if receipt.generation is None else f"generation {receipt.generation}"
    title = f"{name} (parent {receipt.parent or 'none'}), accuracy on the cards' gate rows"
    table(title, ("expert", "weights", "digest", "gate rows", "before", "after"), rows)
    same = receipt.backbone.before == receipt.backbone.after
    router = receipt.router
    click.echo(
        f"backbone {'unchanged' if same else 'CHANGED'} ({receipt.backbone.after[:12]}), "
        f"router {router.kind}/{router.level} trained on {router.rows} rows "
        f"in {router.seconds:.2f} s ({router.digest[:12]})"
    )
    click.echo(
        f"overall {points(receipt.accuracy.overall)}, oracle {points(receipt.accuracy.oracle)}, "
        f"{receipt.seconds:.1f} s in all"
    )
    if router.robust is not None:
        click.echo(
            f"robust: worst domain {router.robust.worst}, {router.robust.regret:.4f} nats above "
            f"its own expert on gate rows (gap {router.robust.gap:.4f}, an estimate)"
        )
    for x in receipt.left_out:
        click.echo(f"left out   {x.id}: {x.code}: {x.reason}")
    for i in receipt.withdrawn:
        click.echo(f"withdrawn  {i}")
    for i in receipt.not_gated:
        click.echo(f"not gated  {i}: its card has no rows to judge on")
    for warning in receipt.health.warnings if receipt.health else ():
        click.echo(f"warning    {warning}")


def points(value: float | None) -> str:
    """Return an accuracy as tables show it."""
    return "" if value is None else f"{value:.3f}"
