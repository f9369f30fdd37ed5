"""The seed's two tasks and two protocols: which question is trained on, which is asked.

`seed` draws 25,000 questions at random, so test questions were trained on: nearly every addition,
about a third of the many more mixed ones (`red_lab.red.seen`). `held-out` splits by the operands
before anything is drawn: a question and its rearrangements are always on one side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from red_lab.arithmetic import (
    FIRST_ANSWER,
    HIGHEST,
    LAST_ANSWER,
    LOWEST,
    Split,
    domain_pairs,
    hashed,
    orders,
    prompt,
    range_of,
)

__all__ = ["LABELS", "Data", "Protocol", "Query", "Task", "boundary", "cells", "load"]

Task = Literal["addition", "mixed"]
Protocol = Literal["seed", "held-out"]

LABELS = tuple(str(n) for n in range(FIRST_ANSWER, LAST_ANSWER + 1))
SIZES = (20_000, 2_500, 2_500)
FOLDS = 10
WORDS = {1: "plus", -1: "minus"}


class Query(NamedTuple):
    """One question: its text, its answer, the range it lies in, and what counts as the same."""

    text: str
    label: str
    domain: str
    cluster: str


@dataclass(frozen=True, kw_only=True)
class Data:
    """Questions to learn from, to choose by and to report on."""

    train: tuple[Query, ...]
    valid: tuple[Query, ...]
    test: tuple[Query, ...]

    def texts(self) -> tuple[str, ...]:
        """Return every distinct text, sorted: what the trunk has to read."""
        return tuple(sorted({q.text for q in (*self.train, *self.valid, *self.test)}))


def load(task: Task, protocol: Protocol, *, seed: int, stratified: bool = False) -> Data:
    """Return the questions of a task under a protocol.

    Args:
        task: ``addition``, or ``mixed``: additions and subtractions of two or three numbers.
        protocol: ``seed`` or ``held-out``.
        seed: Of the draws; under ``held-out`` also the number of the split, modulo five.
        stratified: Draw every range equally often; mixed questions always are, by operators too.
    """
    rng = np.random.default_rng([seed, task == "mixed", protocol == "held-out"])
    strata = _addition(stratified=stratified) if task == "addition" else list(cells().values())
    if protocol == "seed":
        drawn = _draw(strata, sum(SIZES), rng)
        first, second = SIZES[0], SIZES[0] + SIZES[1]
        return Data(
            train=tuple(drawn[:first]), valid=tuple(drawn[first:second]), test=tuple(drawn[second:])
        )
    return _held_out(task, strata, rng, number=seed % 5)


@cache
def cells() -> dict[tuple[str, str], list[Query]]:
    """Return the mixed task's questions by (operators, range); cells without any are left out."""
    found: dict[tuple[str, str], list[Query]] = {}
    span = range(LOWEST, HIGHEST + 1)
    for count in (2, 3):
        for signs in itertools.product((1, -1), repeat=count - 1):
            name = "".join("+" if s > 0 else "-" for s in signs)
            for terms in itertools.product(span, repeat=count):
                answer = terms[0] + sum(s * t for s, t in zip(signs, terms[1:], strict=True))
                if FIRST_ANSWER <= answer <= LAST_ANSWER:
                    query = _mixed(terms, signs, answer)
                    found.setdefault((name, query.domain), []).append(query)
    return found


def boundary(query: Query) -> bool:
    """Say whether the answer lies within two of a border between ranges (seed, 4.4.4 C)."""
    return int(query.label) % 20 in {19, 0, 1, 2} and 19 <= int(query.label) <= 82  # noqa: PLR2004


def _addition(*, stratified: bool) -> list[list[Query]]:
    queries = [_sum(a, b) for pair in domain_pairs() for a, b in orders(pair)]
    if not stratified:
        return [queries]
    return [[q for q in queries if q.domain == d] for d in sorted({q.domain for q in queries})]


def _sum(a: int, b: int) -> Query:
    pair = f"{min(a, b)}+{max(a, b)}"
    return Query(prompt(a, b), str(a + b), range_of(a + b), pair)


def _mixed(terms: Sequence[int], signs: Sequence[int], answer: int) -> Query:
    words = " ".join(f"{WORDS[s]} {t}" for s, t in zip(signs, terms[1:], strict=True))
    signed = sorted([terms[0], *(s * t for s, t in zip(signs, terms[1:], strict=True))])
    cluster = " ".join(map(str, signed))
    return Query(f"What is {terms[0]} {words}?", str(answer), range_of(answer), cluster)


def _draw(strata: Sequence[Sequence[Query]], count: int, rng: np.random.Generator) -> list[Query]:
    """Draw with replacement: a stratum, then a question of it."""
    which = rng.integers(len(strata), size=count)
    place = rng.random(count)
    return [strata[k][int(u * len(strata[k]))] for k, u in zip(which, place, strict=True)]


def _held_out(
    task: Task, strata: Sequence[Sequence[Query]], rng: np.random.Generator, *, number: int
) -> Data:
    """Split by cluster first, then draw from each side."""
    sides: dict[str, list[list[Query]]] = {"train": [], "valid": [], "test": []}
    for stratum in strata:
        parts: dict[str, list[Query]] = {side: [] for side in sides}
        for query in stratum:
            parts[_side(task, query, number)].append(query)
        for side, part in parts.items():
            if part:
                sides[side].append(part)
    train, valid = (
        _draw(sides[s], n, rng) for s, n in zip(("train", "valid"), SIZES, strict=False)
    )
    whole = [q for part in sides["test"] for q in part]
    test = whole if len(whole) <= SIZES[2] else _draw(sides["test"], SIZES[2], rng)
    return Data(train=tuple(train), valid=tuple(valid), test=tuple(test))


def _side(task: Task, query: Query, number: int) -> str:
    """Return the side a question is on: held-out folds are tested, one fold validates."""
    if task == "addition":
        a, b = map(int, query.cluster.split("+"))
        split = Split.numbered(number)
        if split.holds_out((a, b)):
            return "test"
        alone = len([p for p in _pairs_of(a + b) if not split.holds_out(p)]) == 1
        aside = hashed(f"valid {query.cluster}") % FOLDS == 0
        return "valid" if aside and not alone else "train"
    fold = hashed(f"mixed {query.cluster}") % FOLDS
    if fold in {2 * number, 2 * number + 1}:
        return "test"
    return "valid" if fold == (2 * number + 2) % FOLDS else "train"


def _pairs_of(answer: int) -> Iterator[tuple[int, int]]:
    return (p for p in domain_pairs() if sum(p) == answer)
