"""Scores by label: precision, recall, F1, and the confusion table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from .label_sets import split_labels


class LabelScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one label, 0–1.

    Attributes:
        precision: The share of the rows answered with it that have it; None if there are none.
        recall: The share of the rows that have it that are answered with it; None if there are
            none.
        f1: 2 · hits / (rows that have it + rows answered with it).
        rows: The number of rows that have it.
    """

    precision: float | None
    recall: float | None
    f1: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class LabelMetrics:
    """The scores of labelled texts' answers.

    Attributes:
        labels: The score of every label that a row has or was answered with, in sorted order.
        macro_f1: The mean F1 of the labels that rows have.
        micro_f1: F1 over all pairs of row and label, where an answer has any number of labels.
        confusion: Label → answer → rows, where an answer is one label.
    """

    labels: dict[str, LabelScore]
    macro_f1: float
    micro_f1: float | None = None
    confusion: dict[str, dict[str, int]] | None = None


Confusion = Mapping[str, Mapping[str, int]]
"""Label → answer → number of rows; zero counts are left out."""


def count_answers(pairs: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return the confusion table of pairs (label of a row, its answer), in sorted order."""
    table: dict[str, dict[str, int]] = {}
    for (label, answer), rows in sorted(Counter(pairs).items()):
        table.setdefault(label, {})[answer] = rows
    return table


def score_labels(confusion: Confusion) -> dict[str, LabelScore]:
    """Return the score of every label that a row has or was answered with, in sorted order."""
    has = {label: sum(row.values()) for label, row in confusion.items()}
    given = sum((Counter(row) for row in confusion.values()), Counter[str]())
    hits = {label: row[label] for label, row in confusion.items() if label in row}
    return {
        y: _score(hits.get(y, 0), rows=has.get(y, 0), answered=given[y])
        for y in sorted(has.keys() | given.keys())
    }


def _score(hits: int, *, rows: int, answered: int) -> LabelScore:
    return LabelScore(
        precision=hits / answered if answered else None,
        recall=hits / rows if rows else None,
        f1=2 * hits / (rows + answered),
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class LabelSetScores:
    """The scores of answers that are sets of labels.

    Attributes:
        labels: The score of every label that a row has or was answered with, in sorted order.
        micro_f1: F1 over all (row, label) pairs: 2 · hits / (labels of rows + labels answered).
    """

    labels: dict[str, LabelScore]
    micro_f1: float


def score_label_sets(
    pairs: Iterable[tuple[str, str]], *, label_of: Callable[[str], str] = str
) -> LabelSetScores:
    """Return the scores of answers that are sets of labels, or of labels with more than a name.

    An element is a hit if the row has the very same.

    Args:
        pairs: A row's set and its answer, as text.
        label_of: Returns the label of one element of a set.
    """
    has, given, hits = Counter[str](), Counter[str](), Counter[str]()
    for row, answer in pairs:
        labelled, answered = {*split_labels(row)}, {*split_labels(answer)}
        for count, parts in ((has, labelled), (given, answered), (hits, labelled & answered)):
            count.update(map(label_of, parts))
    labels = sorted(has.keys() | given.keys())
    scores = {y: _score(hits[y], rows=has[y], answered=given[y]) for y in labels}
    total = has.total() + given.total()
    return LabelSetScores(labels=scores, micro_f1=2 * hits.total() / total if total else 1.0)


def macro_f1(scores: Mapping[str, LabelScore]) -> float:
    """Return the mean F1 of the labels that rows have, each label with the same weight."""
    values = [s.f1 for s in scores.values() if s.rows]
    return sum(values) / len(values) if values else 0.0


def measure_labels(pairs: Iterable[tuple[str, str]]) -> LabelMetrics:
    """Return the scores of answers that are one label each."""
    confusion = count_answers(pairs)
    scores = score_labels(confusion)
    return LabelMetrics(labels=scores, macro_f1=macro_f1(scores), confusion=confusion)


def measure_label_sets(
    pairs: Iterable[tuple[str, str]], *, label_of: Callable[[str], str] = str
) -> LabelMetrics:
    """Return the scores of answers that are sets; see `score_label_sets`."""
    sets = score_label_sets(pairs, label_of=label_of)
    return LabelMetrics(labels=sets.labels, macro_f1=macro_f1(sets.labels), micro_f1=sets.micro_f1)
