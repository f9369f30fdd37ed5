"""Splits of an author's rows, made before anything is trained.

`split_rows` divides rows into training rows, validation rows for early stopping, and rows for the
card.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

import msgspec

from redhost.core.bus.head import Head
from redhost.core.bus.task import CLASSIFICATION, Task
from redhost.core.label_sets import composed
from redhost.core.types import CardRow, Row, percent
from redhost.registry.errors import UsageError
from redhost.registry.package.payload import MAX_CARD

CARD_SHARE, CARD_ROWS, VALID_SHARE = 0.25, 512, 0.1
SHOWN_ROWS = 64
"""Most fit rows in a card of vectors: its sums cover all rows except gate rows, and fit rows are
only used to scale the solution from the sums."""
SHOWN = 8
"""Most labels that a concern lists."""

FEW_ROWS, FEW_GATE, MOSTLY = 5, 20, 0.8
"""Limits of `concerns`: training rows of a label, gate rows, largest share of one label."""


@dataclass(frozen=True, kw_only=True)
class DataSplits:
    """An author's rows, each in one split; equal texts are never in two splits.

    Attributes:
        train: Rows the expert learns from.
        valid: Rows for early stopping.
        fit: Card rows on which routers are trained.
        gate: Card rows on which compositions are judged.
        task: The task of the rows.
    """

    train: tuple[Row, ...]
    valid: tuple[Row, ...]
    fit: tuple[Row, ...]
    gate: tuple[Row, ...]
    task: Task = CLASSIFICATION

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all splits."""
        return (*self.train, *self.valid, *self.fit, *self.gate)

    @property
    def summed(self) -> tuple[Row, ...]:
        """The rows that the sums of a card with gate rows may cover."""
        return (*self.train, *self.valid, *self.fit)

    def showing(self, rows: int) -> DataSplits:
        """Return splits with at most this many fit rows; the others become training rows."""
        return replace(self, train=(*self.train, *self.fit[rows:]), fit=self.fit[:rows])

    def label_counts(self) -> dict[str, dict[str, int]]:
        """Return, for each label in sorted order, the number of its rows in each split."""
        splits = {"train": self.train, "valid": self.valid, "fit": self.fit, "gate": self.gate}
        counts = {name: Counter(self._labels(rows)) for name, rows in splits.items()}
        labels = sorted({*self._labels(self.rows)})
        return {y: {name: count[y] for name, count in counts.items()} for y in labels}

    def _labels(self, rows: Iterable[Row]) -> Iterator[str]:
        head = self.task.head
        for row in rows:
            yield from head.parts(row.label)

    def concerns(self, *, gate: int | None) -> list[str]:
        """Return warnings about numbers of rows that are too small or too uneven.

        Args:
            gate: Gate rows of the card, by which hosts judge; None for a card without rows.
        """
        faults = [*self._repeated()]
        if gate == 0:
            faults.append("no gate rows: no host can tell how well it answers; bring more rows")
        elif gate is not None and gate < FEW_GATE and self.task.unit.whole:  # else by word or token
            faults.append(
                f"{gate} gate rows say little: each is {100 / gate:.0f} points, and a host may "
                "lose two of them unnoticed; bring more rows"
            )
        counts = self.label_counts()
        if len(counts) < 2:  # noqa: PLR2004  (rows without labels)
            return faults
        few = [f"{y} ({c['train']})" for y, c in counts.items() if c["train"] < FEW_ROWS]
        if few:
            more = f" and {len(few) - SHOWN} more" if len(few) > SHOWN else ""
            faults.append(
                f"labels with too few rows to be learnt from: {', '.join(few[:SHOWN])}{more}"
            )
        if any(len(self.task.head.parts(r.label)) != 1 for r in self.rows):
            return faults  # it is normal that most rows have none of the labels
        most = max(counts, key=lambda y: sum(counts[y].values()))
        share = sum(counts[most].values()) / len(self.rows)
        if share > MOSTLY:
            faults.append(
                f"{percent(share)} of the rows are {most!r}: always answering that is as often "
                "right; look at macro F1"
            )
        return faults

    def _repeated(self) -> Iterator[str]:
        """Yield a line about repeated texts, if there are any."""
        labels: dict[str, set[str]] = {}
        for row in self.rows:
            labels.setdefault(row.text, set()).add(row.label)
        if len(labels) < len(self.rows):
            several = sum(len(names) > 1 for names in labels.values())
            under = f", and {several} of these stand under several labels" if several else ""
            yield f"{len(self.rows)} rows have {len(labels)} distinct texts{under}"

    @property
    def card_rows(self) -> list[CardRow]:
        """The rows of a card of texts, in order."""
        shown = (("fit", self.fit), ("gate", self.gate))
        return [CardRow(text=r.text, label=r.label, part=p) for p, rows in shown for r in rows]


def split_rows(
    rows: Sequence[Row], *, valid: Sequence[Row] | None = None, task: Task = CLASSIFICATION
) -> DataSplits:
    """Split rows as their task does, before anything is trained; most split labelled texts.

    Args:
        rows: The author's rows.
        valid: Validation rows of the author's own.
        task: The task of the rows.

    Raises:
        UsageError: If the rows cannot be split.
    """
    recipe = task.unit.recipe
    return (recipe.split if recipe else split_labelled)(rows, valid=valid, task=task)


def split_labelled(
    rows: Sequence[Row], *, valid: Sequence[Row] | None = None, task: Task = CLASSIFICATION
) -> DataSplits:
    """Split rows by the hash of their text.

    A quarter, at most 512 rows and half of what a card of texts may have, goes to the card, half
    `fit` and half `gate`. A tenth of the rest goes to validation, if no validation rows are given.
    Every label keeps a training row.

    Args:
        rows: The author's rows.
        valid: Validation rows of the author's own.
        task: The task of the rows.

    Raises:
        UsageError: If there are fewer than two labels, a label is not a valid answer, or a
            validation text is also among the rows.
    """
    labels = {r.label for r in rows}
    if len(labels) < 2:  # noqa: PLR2004
        raise UsageError(
            "the data has one label only" if labels else "the data has no labels",
            expected="at least two",
            found=", ".join(labels) or "none",
            hint="Add rows of another label, such as texts that are none of these.",
        )
    require_answers(task.head, (*rows, *(valid or ())))
    both = {r.text for r in rows} & {r.text for r in valid or ()}
    if both:
        raise UsageError(
            "validation rows stand in the training data too", found=repr(min(both))[:60]
        )
    ordered = sorted(rows, key=lambda r: (_digest(r.text), r.label))
    groups = [task.head.labels_in([r.label]) or {r.label} for r in ordered]
    # The first row of each label stays for training: in reversed order, the last one set wins.
    labelled = zip(reversed(groups), reversed(ordered), strict=True)
    taught = set({y: r.text for group_labels, r in labelled for y in group_labels}.values())
    texts = list(dict.fromkeys(r.text for r in ordered if r.text not in taught))
    sizes = accumulate(len(msgspec.json.encode(text)) for text in texts)
    fitting = sum(1 for _ in takewhile(lambda size: size <= MAX_CARD // 2, sizes))
    card = texts[: min(CARD_ROWS, int(CARD_SHARE * len(rows)), fitting)]
    fit, gate, others = set(card[::2]), set(card[1::2]), texts[len(card) :]
    chosen = set(others[: int(VALID_SHARE * len(others))]) if valid is None else set[str]()

    def rows_of(among: set[str]) -> tuple[Row, ...]:
        return tuple(r for r in ordered if r.text in among)

    return DataSplits(
        train=tuple(r for r in ordered if r.text not in fit | gate | chosen),
        valid=rows_of(chosen) if valid is None else tuple(valid),
        fit=rows_of(fit)[:256],
        gate=rows_of(gate)[:256],
        task=task,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def require_answers(head: Head, rows: Iterable[Row]) -> None:
    """Check that rows can be trained on.

    Raises:
        UsageError: If a row's label is not a valid answer.
    """
    for label in sorted({r.label for r in rows}):
        expected = head.expected(label)
        # Two spellings of one letter print alike, and would be two labels.
        if expected is None and composed(label) != label:
            expected = "labels in Unicode's composed form (NFC)"
        if expected:
            raise UsageError(
                "the rows cannot be learnt from",
                expected=expected,
                found=repr(label)[:40],
            )
