"""Splits of an author's rows, made before anything is trained.

`split_rows` and `split_documents` divide rows into training rows, validation rows for early
stopping, and rows for the card.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...registry.errors import UsageError
from ..bus.head import require_answers
from ..bus.tasks import CLASSIFICATION, Task, Unit
from ..types import CardRow, Row

CARD_SHARE, CARD_ROWS, VALID_SHARE = 0.25, 512, 0.1
SHOWN_ROWS = 64
"""Most fit rows in a card of vectors: its sums cover all rows except gate rows, and fit rows are
only used to scale the solution from the sums."""
CARD_PASSAGES = 32
"""Most passages in each half of a card, for text generation."""
SHOWN = 8
"""Most labels that a concern lists."""
LONGEST_PASSAGE = 800
"""Most characters in a passage: some 200 tokens."""


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
            yield from head.labels_in([row.label]) if head.several else (row.label,)

    def concerns(self, *, gate: int | None) -> list[str]:
        """Return warnings about numbers of rows that are too small or too uneven.

        Args:
            gate: Gate rows of the card, by which hosts judge; None for a card without rows.
        """
        found = [*self._repeated()]
        if gate == 0:
            found.append("no gate rows: no host can tell how well it answers; bring more rows")
        elif gate is not None and gate < FEW_GATE:
            found.append(
                f"{gate} gate rows say little: each is {100 / gate:.0f} points, and a host may "
                "lose two of them unnoticed; bring more rows"
            )
        counts = self.label_counts()
        if len(counts) < 2:  # noqa: PLR2004  (text generation has no labels)
            return found
        few = [f"{y} ({c['train']})" for y, c in counts.items() if c["train"] < FEW_ROWS]
        if few:
            more = f" and {len(few) - SHOWN} more" if len(few) > SHOWN else ""
            listed = f"{', '.join(few[:SHOWN])}{more}"
            found.append(f"labels with too few rows to be learnt from: {listed}")
        if self.task.head.several:  # it is normal that most rows have none of the labels
            return found
        most = max(counts, key=lambda y: sum(counts[y].values()))
        share = sum(counts[most].values()) / len(self.rows)
        if share > MOSTLY:
            found.append(
                f"{share:.0%} of the rows are {most!r}: always answering that is as often right; "
                "look at macro F1"
            )
        return found

    def _repeated(self) -> Iterator[str]:
        """Yield a line about repeated texts, if there are any."""
        labels: dict[str, set[str]] = {}
        for row in self.rows:
            labels.setdefault(row.text, set()).add(row.label)
        if len(labels) < len(self.rows):
            several = sum(len(some) > 1 for some in labels.values())
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
    """Split rows by the hash of their text, before anything is trained.

    A quarter, at most 512 rows, goes to the card, half `fit` and half `gate`. A tenth of the rest
    goes to validation, if no validation rows are given. Every label keeps a training row.

    Args:
        rows: The author's rows.
        valid: Validation rows of the author's own.
        task: The task of the rows; for text generation, whole documents are split.

    Raises:
        UsageError: If there are fewer than two labels, a label is not a valid answer, or a
            validation text is also among the rows.
    """
    if task.unit is Unit.TOKEN:
        return split_documents(rows, valid=valid)
    labels = {r.label for r in rows}
    if len(labels) < 2:  # noqa: PLR2004
        raise UsageError(
            "the data has one label only" if labels else "the data has no labels",
            expected="at least two",
            found=", ".join(labels) or "none",
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
    first = {y: r.text for some, r in labelled for y in some}
    taught = set(first.values())
    texts = list(dict.fromkeys(r.text for r in ordered if r.text not in taught))
    card = texts[: min(CARD_ROWS, int(CARD_SHARE * len(rows)))]
    fit, gate, rest = set(card[::2]), set(card[1::2]), texts[len(card) :]
    chosen = set(rest[: int(VALID_SHARE * len(rest))]) if valid is None else set[str]()

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


def split_documents(rows: Sequence[Row], *, valid: Sequence[Row] | None = None) -> DataSplits:
    """Split whole documents by the hash of their names.

    A quarter of them goes to the card, a tenth to validation.

    Args:
        rows: Texts; `domain` names a text's document. A text without one is its own document.
        valid: Validation texts of the author's own.

    Raises:
        UsageError: If there are fewer than five documents, or all passages of the training
            documents also occur in the others.
    """
    by_name: dict[str, list[str]] = {}
    for row in rows:
        by_name.setdefault(row.text if row.domain is None else row.domain, []).append(row.text)
    names = sorted(by_name, key=_digest)
    if len(names) < 5:  # noqa: PLR2004  (one for each other split, and two for training)
        raise UsageError(
            "too few documents to set any aside", expected="at least 5", found=str(len(names))
        )
    card, stop = max(1, len(names) // 8), max(1, len(names) // 10) if valid is None else 0
    cuts = (card, 2 * card, 2 * card + stop, len(names))
    known: set[str] = set()

    def fresh(texts: Iterable[str]) -> tuple[Row, ...]:
        """Return the passages of texts that are in no split yet."""
        new = dict.fromkeys(p for text in texts for p in _passages(text) if p not in known)
        known.update(new)
        return tuple(Row(text=p, label="") for p in new)

    fit, gate, validation, train = (
        fresh(text for name in names[start:end] for text in by_name[name])
        for start, end in pairwise((0, *cuts))
    )
    if not train:
        raise UsageError(
            "the documents say the same",
            expected="passages to learn from that do not stand in those set aside",
            found=f"{len(known)} different ones in {len(names)} documents",
        )
    if valid is not None:
        validation = fresh(row.text for row in valid)
    return DataSplits(train=train, valid=validation, fit=_spread(fit), gate=_spread(gate))


def _passages(text: str) -> list[str]:
    """Cut a text at line ends, else between words, into passages of at most `LONGEST_PASSAGE`.

    Only white space between passages is lost.
    """
    passages, rest = [], text.strip("\n")
    while len(rest) > LONGEST_PASSAGE:
        cut = (
            max(rest.rfind("\n", 0, LONGEST_PASSAGE), 0)
            or max(rest.rfind(" ", 0, LONGEST_PASSAGE), 0)
            or LONGEST_PASSAGE
        )
        passages.append(rest[:cut])
        rest = rest[cut:].strip("\n")
    return [t for t in (*passages, rest) if t.strip()]


def _spread(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return at most `CARD_PASSAGES` rows, evenly spaced."""
    step = -(-len(rows) // CARD_PASSAGES)
    return rows[:: max(step, 1)]
