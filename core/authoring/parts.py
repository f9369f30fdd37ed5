"""An author's rows in parts: what to train on, what to stop on, and what the card shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ...registry.errors import UsageError
from ..rows import CardRow, Row
from ..tasks import Classification, Task

__all__ = ["Parts", "split_rows"]

CARD_SHARE, CARD_ROWS, VALID_SHARE = 0.25, 512, 0.1


@dataclass(frozen=True, kw_only=True)
class Parts:
    """An author's rows, each in one part; equal texts are never in two."""

    train: tuple[Row, ...]
    valid: tuple[Row, ...]
    fit: tuple[Row, ...]
    gate: tuple[Row, ...]

    @property
    def card_rows(self) -> list[CardRow]:
        """The rows of a card of texts, in order."""
        parts = (("fit", self.fit), ("gate", self.gate))
        return [CardRow(text=r.text, label=r.label, part=p) for p, rows in parts for r in rows]


def split_rows(
    rows: Sequence[Row], *, valid: Sequence[Row] | None = None, task: Task | None = None
) -> Parts:
    """Set rows aside before anything is trained, by the hash of their text.

    A quarter, 512 rows at most, goes to the card, half `fit` and half `gate`; a tenth of the rest
    to validation where none is given. Every label keeps a row to train on.

    Args:
        rows: The author's rows.
        valid: Validation rows of the author's own.
        task: Classes, the default, or numbers, which are no classes to keep a row of each.

    Raises:
        UsageError: If there are no two labels, or a validation text stands among the rows too.
    """
    labels = {r.label for r in rows}
    if len(labels) < 2:  # noqa: PLR2004
        raise UsageError(
            "the data has one label only" if labels else "the data has no labels",
            expected="at least two",
            found=", ".join(labels) or "none",
        )
    both = {r.text for r in rows} & {r.text for r in valid or ()}
    if both:
        raise UsageError(
            "validation rows stand in the training data too", found=repr(min(both))[:60]
        )
    ordered = sorted(rows, key=lambda r: (_hash(r.text), r.label))
    groups = (task or Classification()).groups([r.label for r in ordered])
    kept = {g: r.text for g, r in zip(reversed(groups), reversed(ordered), strict=True)}.values()
    free = [r for r in ordered if r.text not in set(kept)]
    texts = list(dict.fromkeys(r.text for r in free))
    card = texts[: min(CARD_ROWS, int(CARD_SHARE * len(rows)))]
    fit, gate = set(card[::2]), set(card[1::2])
    rest = texts[len(card) :]
    chosen = set(rest[: int(VALID_SHARE * len(rest))]) if valid is None else set()
    aside = fit | gate | chosen
    return Parts(
        train=tuple(r for r in ordered if r.text not in aside),
        valid=tuple(r for r in ordered if r.text in chosen) if valid is None else tuple(valid),
        fit=tuple(r for r in ordered if r.text in fit)[:256],
        gate=tuple(r for r in ordered if r.text in gate)[:256],
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
