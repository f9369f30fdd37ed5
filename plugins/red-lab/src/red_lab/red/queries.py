"""The seed's two tasks and two protocols: which questions are training and which test questions.

The protocol `seed` draws 25,000 questions at random, so many test questions are also training
questions: nearly every addition, and about a third of the mixed questions, of which there are many
more (`red_lab.red.summary`). `held-out` splits by operands before anything is drawn: a question and
its rearrangements are always on the same side. One rule, `red_lab.arithmetic.Split`, applies to
both tasks and to the pretraining data of the tiny language model.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from red_lab.arithmetic import (
    FIRST_ANSWER,
    FOLDS,
    HIGHEST,
    LAST_ANSWER,
    LOWEST,
    SPLITS,
    Split,
    domain_pairs,
    hashed,
    orders,
    prompt,
    range_of,
    written,
)

__all__ = ["LABELS", "RULE", "Data", "Protocol", "Query", "Task", "boundary", "cells", "load"]

Task = Literal["addition", "mixed"]
Protocol = Literal["seed", "held-out"]

LABELS = tuple(str(n) for n in range(FIRST_ANSWER, LAST_ANSWER + 1))
SIZES = (20_000, 2_500, 2_500)
WORDS = {1: "plus", -1: "minus"}

RULE = 2
"""Number of the rule that splits `held-out`; under rule 1, mixed questions had separate folds."""


class Query(NamedTuple):
    """One question: its text, its answer, the answer's range, and its cluster of rearrangements."""

    text: str
    label: str
    domain: str
    cluster: str


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training, validation and test questions."""

    train: tuple[Query, ...]
    valid: tuple[Query, ...]
    test: tuple[Query, ...]

    def texts(self) -> tuple[str, ...]:
        """Return every distinct text, sorted: the inputs of the trunk."""
        return tuple(sorted({q.text for q in (*self.train, *self.valid, *self.test)}))

    def digest(self) -> str:
        """Return a digest of these questions in this order: eight hex digits."""
        return f"{hashed(json.dumps([self.train, self.valid, self.test])):08x}"


def load(task: Task, protocol: Protocol, *, seed: int, stratified: bool = False) -> Data:
    """Return the questions of a task under a protocol.

    Args:
        task: ``addition``, or ``mixed``: additions and subtractions of two or three numbers.
        protocol: ``seed`` or ``held-out``.
        seed: Random seed of the draws; under ``held-out`` also the number of the split, modulo 5.
        stratified: Draw every range equally often. Mixed questions are always stratified, by
            operators as well.
    """
    rng = np.random.default_rng([seed, task == "mixed", protocol == "held-out"])
    strata = _addition(stratified=stratified) if task == "addition" else list(cells().values())
    if protocol == "seed":
        drawn = _draw(strata, sum(SIZES), rng)
        first, second = SIZES[0], SIZES[0] + SIZES[1]
        return Data(
            train=tuple(drawn[:first]), valid=tuple(drawn[first:second]), test=tuple(drawn[second:])
        )
    return _held_out(strata, rng, Split.numbered(seed % SPLITS))


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
    """Return whether the answer lies within two of a border between ranges (seed, 4.4.4 C)."""
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
    """Draw with replacement: first a stratum, then a question from it."""
    which = rng.integers(len(strata), size=count)
    place = rng.random(count)
    return [strata[k][int(u * len(strata[k]))] for k, u in zip(which, place, strict=True)]


def _held_out(strata: Sequence[Sequence[Query]], rng: np.random.Generator, split: Split) -> Data:
    """Split by operands first, then draw from each side."""
    left = Counter(map(sum, split.train_pairs()))
    alone = frozenset(answer for answer, pairs in left.items() if pairs == 1)
    sides: dict[str, list[list[Query]]] = {"train": [], "valid": [], "test": []}
    for stratum in strata:
        parts: dict[str, list[Query]] = {side: [] for side in sides}
        for query in stratum:
            parts[_side(_terms(query), split, alone)].append(query)
        for side, part in parts.items():
            if part:
                sides[side].append(part)
    train, valid = (
        _draw(sides[s], n, rng) for s, n in zip(("train", "valid"), SIZES, strict=False)
    )
    whole = [q for part in sides["test"] for q in part]
    test = whole if len(whole) <= SIZES[2] else _draw(sides["test"], SIZES[2], rng)
    return Data(train=tuple(train), valid=tuple(valid), test=tuple(test))


@cache  # rearrangements have the same operands
def _side(terms: tuple[int, ...], split: Split, alone: frozenset[int]) -> str:
    """Return the side of some operands, in either task; the last pair of a sum is for training."""
    if split.holds_out(terms):
        return "test"
    last = len(terms) == 2 and sum(terms) in alone  # noqa: PLR2004
    return "valid" if hashed(f"valid {written(terms)}") % FOLDS == 0 and not last else "train"


def _terms(query: Query) -> tuple[int, ...]:
    """Return a question's operands; for c − b, those of the inverse sum (c − b) + b."""
    terms = tuple(map(int, query.cluster.replace("+", " ").split()))
    if len(terms) == 2 and terms[0] < 0:  # noqa: PLR2004
        return int(query.label), -terms[0]
    return terms
