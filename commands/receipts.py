"""Receipts printed for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .tables import table

if TYPE_CHECKING:
    from ..core.receipt import Bits, Comparison, ExcessHarm, LeftOut, Receipt


HEAD = ("expert", "weights", "weights digest", "gate rows", "before", "after", "own")

SHOWN, SHORTLIST = 40, 10
"""Up to the first number all experts are shown; otherwise the second, and a line on the rest."""


def print_receipt(receipt: Receipt, *, before: int | None = None) -> None:
    """Print what a recompose did, and that nothing else changed.

    Without a table if the generation `before` is still the current one: nothing changed at all.
    """
    name = "dry run" if receipt.generation is None else f"generation {receipt.generation}"
    title = (
        f"{name} (parent {receipt.parent or 'none'}), accuracy on gate rows, own: the expert alone"
    )
    if before is not None and before == receipt.generation:
        click.echo(f"nothing changed: generation {before} stays")
    else:
        table(title, HEAD, [_row(receipt, i) for i in _shown(receipt)])
    if len(receipt.experts) > SHOWN:
        click.echo(_rest(receipt))
    unchanged, router = receipt.backbone.before == receipt.backbone.after, receipt.router
    click.echo(
        f"backbone {'unchanged' if unchanged else 'CHANGED'} ({receipt.backbone.after[:12]}), "
        f"router {router.kind}/{router.level} trained on {router.rows} rows "
        f"in {router.seconds:.2f} s ({router.digest[:12]})"
    )
    click.echo(
        f"overall {points(receipt.accuracy.overall)}, oracle {points(receipt.accuracy.oracle)}, "
        f"{receipt.seconds:.1f} s in all"
    )
    if router.prior is not None:
        shares = ", ".join(f"{column} {share:.1%}" for column, share in router.shares.items())
        click.echo(f"router expects texts of {shares}")
    if router.tried:
        tried = ", ".join(f"{kind} {share:.1%}" for kind, share in router.tried.items())
        click.echo(f"router {router.kind} chosen by held rows sent to their own expert: {tried}")
    _list("lost", [_lost(i, e) for i, e in receipt.accuracy.excess.items() if e.fall > 0])
    if receipt.bits is not None:
        print_bits(receipt.bits)
    if router.robust is not None:
        click.echo(
            f"robust: worst domain {router.robust.worst}, {router.robust.regret:.4f} nats above "
            f"its own expert on gate rows (gap {router.robust.gap:.4f}, an estimate)"
        )
    _list("left out", _left_out(receipt.left_out))
    withdrawn, updated = receipt.accuracy.withdrawn, receipt.accuracy.updated
    _list("withdrawn", [_former(i, withdrawn.get(i)) for i in receipt.withdrawn])
    _list("updated", [_former(i, x) for i, x in updated.items()])
    _list("drift", [f"{i}: {kind}, composed from the store" for i, kind in receipt.drift.items()])
    _list("not gated", [f"{i}: its card has no rows to judge on" for i in receipt.not_gated])
    _list("ported", [f"{i}: from {digest[:12]}" for i, digest in receipt.ported.items()])
    if receipt.decline is not None:
        share = f"{receipt.decline.share:.2%} of the experts' own texts at most"
        click.echo(f"declines {share} as unfamiliar, in addition to those routed to no expert")
    of_health = receipt.health.warnings if receipt.health else ()
    _list("warning", [*of_health, *(receipt.decline.warnings if receipt.decline else ())])


def _left_out(experts: Sequence[LeftOut]) -> list[str]:
    """Return a line for each expert, and one for all that are merely for other backbones."""
    others = [x.id for x in experts if x.code == "backbone_mismatch"]
    apart = {*others} if len(others) > 1 else set[str]()
    lines = [f"{x.id}: {x.code}: {x.reason}" for x in experts if x.id not in apart]
    if apart:
        more = f", and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        names = ", ".join(others[:SHOWN])
        lines.append(f"{len(others)} experts for other backbones: {names}{more}")
    return lines


def _lost(domain: str, excess: ExcessHarm) -> str:
    """Return a line on what a domain loses to newcomers."""
    fall, reference, more, error = (
        100 * x for x in (excess.fall, excess.reference, excess.excess, excess.error)
    )
    lost = f"{domain}: {fall:.1f} points to newcomers"
    if reference <= 0:  # then it excuses nothing
        return f"{lost}, ± {error:.1f}; discriminants of the same cards lose none"
    beyond = f"{more:.1f} ± {error:.1f} more than the {reference:.1f}"
    return f"{lost}, {beyond} that discriminants of the same cards lose"


def _former(i: str, card: Comparison | None) -> str:
    """Return a line on an expert whose former card is judged, as it is gone or updated."""
    if card is None:
        return i
    fall = f"{points(card.before)} before, {points(card.after)} after"
    return f"{i}: {fall}, on the {card.rows} gate rows of its former card"


def print_bits(bits: Bits) -> None:
    """Print bits per byte by domain, compared with those of each domain's own expert."""
    head = ("domain", "bytes", "before", "after", "own expert")
    rows = [
        (i, bits.bytes[i], points((bits.before or {}).get(i)), points(x), points(bits.oracle[i]))
        for i, x in bits.after.items()
    ]
    table("bits per byte on the cards' gate passages", head, rows[:SHOWN])


def _row(receipt: Receipt, i: str) -> tuple[object, ...]:
    """Return the table's row of one expert."""
    change, accuracy = receipt.experts[i], receipt.accuracy
    return (
        i,
        ("updated" if i in accuracy.updated else "unchanged")
        if change.before == change.after
        else "CHANGED",
        change.after[:12],
        accuracy.rows.get(i, ""),
        points((accuracy.before or {}).get(i)),
        points(accuracy.after.get(i)),
        points(accuracy.own.get(i)),
    )


def _shown(receipt: Receipt) -> Sequence[str]:
    """Return the experts to show: all, or if there are many, those of most interest.

    First those that changed, then new ones, then those that lost most, then the worst ones.
    """
    if len(receipt.experts) <= SHOWN:
        return list(receipt.experts)
    accuracy = receipt.accuracy
    before = accuracy.before or {}

    def interest(i: str) -> tuple[bool, bool, float, float]:
        change, after = receipt.experts[i], accuracy.after.get(i, 1.0)
        unchanged, old = change.before == change.after, accuracy.before is None or i in before
        return unchanged, old, after - before.get(i, after), after

    return sorted(receipt.experts, key=interest)[:SHORTLIST]


def _rest(receipt: Receipt) -> str:
    """Return a line about all experts, if not all are shown."""
    unchanged = sum(change.before == change.after for change in receipt.experts.values())
    before, after = receipt.accuracy.before or {}, receipt.accuracy.after
    moved = [after[i] - x for i, x in before.items() if i in after]
    summary = f"{len(receipt.experts)} experts, the weights of {unchanged} unchanged"
    if moved:
        better, worse = sum(x > 0 for x in moved), sum(x < 0 for x in moved)
        summary += (
            f"; {better} domains gained, {worse} lost, {len(moved) - better - worse} as before"
        )
    return f"{summary}. All of them: --json"


def _list(word: str, lines: Sequence[str]) -> None:
    """Print a line for each, up to `SHOWN`, and the number of the others if there are more."""
    for line in lines[:SHOWN]:
        click.echo(f"{word:<10} {line}")
    if len(lines) > SHOWN:
        click.echo(f"{word:<10} {len(lines) - SHOWN} more; all of them: --json")


def points(value: float | None) -> str:
    """Return an accuracy as formatted for tables."""
    return "" if value is None else f"{value:.3f}"
