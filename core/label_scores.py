"""How each label is answered: precision, recall, F1, and which label is taken for which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec


class LabelScore(msgspec.Struct, frozen=True, kw_only=True):
    """How one label is answered, 0–1.

    Attributes:
        precision: Of the rows answered with it, the share that has it; None where none was.
        recall: Of the rows that have it, the share answered with it; None where none has.
        f1: 2 · hits / (rows that have it + rows answered with it).
        rows: How many rows have it.
    """

    precision: float | None
    recall: float | None
    f1: float
    rows: int


Confusion = Mapping[str, Mapping[str, int]]
"""Label → answer → rows; only what there is."""


def count_answers(pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return the confusion table of pairs of a row's label and its answer, in sorted order."""
    table: dict[str, dict[str, int]] = {}
    for (label, answer), rows in sorted(Counter(pairs).items()):
        table.setdefault(label, {})[answer] = rows
    return table


def score_labels(confusion: Confusion) -> dict[str, LabelScore]:
    """Return the score of every label that a row has or was answered with, in sorted order."""
    has = {label: sum(row.values()) for label, row in confusion.items()}
    given = sum((Counter(row) for row in confusion.values()), Counter[str]())
    scores = {}
    for label in sorted(has.keys() | given.keys()):
        hits = confusion.get(label, {}).get(label, 0)
        rows, answered = has.get(label, 0), given[label]
        scores[label] = LabelScore(
            precision=hits / answered if answered else None,
            recall=hits / rows if rows else None,
            f1=2 * hits / (rows + answered),
            rows=rows,
        )
    return scores


def macro_f1(scores: Mapping[str, LabelScore]) -> float:
    """Return the mean F1 of the labels that rows have; every label counts the same."""
    values = [s.f1 for s in scores.values() if s.rows]
    return sum(values) / len(values) if values else 0.0
