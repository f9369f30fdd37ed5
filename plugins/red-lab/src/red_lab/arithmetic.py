"""Addition with operands 1..50: folds, splits, ranges, prompts and rows.

This module decides which operands each model may be trained on, and it
does not import torch.  A *pair* is unordered and written
``(a, b)`` with ``a <= b``; swapped questions are therefore always on one side.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

__all__ = [
    "ArithmeticRow",
    "Split",
    "domain_pairs",
    "fold",
    "hashed",
    "in_range",
    "orders",
    "pair_of",
    "pairs_in",
    "pairs_with",
    "prompt",
    "range_of",
    "roles",
    "row_of",
    "rows",
    "share_of",
    "written",
]

Pair = tuple[int, int]
Role = Literal["train", "fit", "gate"]

LOWEST: Final = 1
HIGHEST: Final = 50
FIRST_ANSWER: Final = 2 * LOWEST
LAST_ANSWER: Final = 2 * HIGHEST
FOLDS: Final = 10
SPLITS: Final = 5
RANGES: Final[tuple[tuple[str, int, int], ...]] = (
    ("range1", 2, 20),
    ("range2", 21, 40),
    ("range3", 41, 60),
    ("range4", 61, 80),
    ("range5", 81, 100),
)

_SUM = re.compile(r"(\d+)(?:\s*(?:\+|plus|and)\s*(\d+))+", re.IGNORECASE)
_DIFFERENCE = re.compile(r"(\d+)\s*(?:-|minus)\s*(?=(\d+))", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


class ArithmeticRow(NamedTuple):
    """One question: its text, its answer as a string, the range it lies in."""

    text: str
    label: str
    domain: str


def pair_of(a: int, b: int) -> Pair:
    """The unordered pair of two operands."""
    return (a, b) if a <= b else (b, a)


def hashed(text: str) -> int:
    """A 32-bit number that depends only on ``text``."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def written(terms: Iterable[int]) -> str:
    """The canonical text of operands, independent of their order, for hashing."""
    return "+".join(map(str, sorted(terms)))


def fold(terms: Iterable[int]) -> int:
    """The fold, 0..9, of operands of any size."""
    return hashed(written(terms)) % FOLDS


def prompt(a: int, b: int) -> str:
    """The question for two operands in the order given."""
    return f"What is {a} plus {b}?"


def range_of(answer: int) -> str:
    """The name of the range which holds ``answer``."""
    for name, low, high in RANGES:
        if low <= answer <= high:
            return name
    raise ValueError(f"answer {answer} lies outside {FIRST_ANSWER}..{LAST_ANSWER}")


def domain_pairs() -> tuple[Pair, ...]:
    """All 1,275 unordered pairs of operands 1..50."""
    span = range(LOWEST, HIGHEST + 1)
    return tuple((a, b) for a in span for b in span if a <= b)


def orders(pair: Pair) -> tuple[Pair, ...]:
    """The one or two ordered pairs of an unordered pair."""
    a, b = pair
    return ((a, b),) if a == b else ((a, b), (b, a))


def row_of(a: int, b: int) -> ArithmeticRow:
    """The labelled row of one ordered pair."""
    return ArithmeticRow(prompt(a, b), str(a + b), range_of(a + b))


def rows(pairs: Iterable[Pair]) -> tuple[ArithmeticRow, ...]:
    """The rows of both orders of every pair, in the order of ``pairs``."""
    return tuple(row_of(a, b) for pair in pairs for a, b in orders(pair))


def _in_domain(terms: Sequence[int]) -> bool:
    return len(terms) == 2 and all(LOWEST <= t <= HIGHEST for t in terms)  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class Split:
    """Which folds are held out, and which sums stay in training nevertheless.

    ``exempt`` lists the sums whose pairs all lie in held-out folds.  If they
    were held out, no model could learn them, so they are for training only.
    """

    held: frozenset[int]
    exempt: frozenset[int]

    @classmethod
    def of_folds(cls, *folds: int) -> Split:
        """The split that holds out exactly ``folds``."""
        held = frozenset(folds)
        free = {a + b for a, b in domain_pairs() if fold((a, b)) not in held}
        exempt = set(range(FIRST_ANSWER, LAST_ANSWER + 1)) - free
        return cls(held=held, exempt=frozenset(exempt))

    @classmethod
    def numbered(cls, k: int) -> Split:
        """Split ``k`` in 0..4."""
        if not 0 <= k < SPLITS:
            raise ValueError(f"split {k} is not one of 0..{SPLITS - 1}")
        return cls.of_folds(2 * k, 2 * k + 1, (2 * k + 2) % FOLDS)

    def holds_out(self, terms: Sequence[int]) -> bool:
        """Whether no training text may add up ``terms``, usually a pair, of any size."""
        if fold(terms) not in self.held:
            return False
        return not (_in_domain(terms) and sum(terms) in self.exempt)

    def allows(self, text: str) -> bool:
        """Whether ``text`` contains no held-out pair in any form."""
        return not any(self.holds_out(pair) for pair in pairs_in(text))

    def train_pairs(self) -> tuple[Pair, ...]:
        """The training pairs of the domain."""
        return tuple(p for p in domain_pairs() if not self.holds_out(p))

    def test_pairs(self, *folds: int) -> tuple[Pair, ...]:
        """The held-out pairs of the domain; only those in ``folds`` if given."""
        held = (p for p in domain_pairs() if self.holds_out(p))
        return tuple(p for p in held if not folds or fold(p) in folds)


def pairs_in(text: str) -> Iterator[Pair]:
    """Every pair that ``text`` adds or subtracts.

    A chain ``a + b + c`` yields all pairs of its terms and of its partial
    sums with the next term; a difference ``c - a`` yields ``(a, c - a)``.
    """
    for match in _SUM.finditer(text):
        yield from _pairs_of_chain([int(n) for n in _NUMBER.findall(match[0])])
    for match in _DIFFERENCE.finditer(text):
        whole, part = int(match[1]), int(match[2])
        yield pair_of(min(whole, part), abs(whole - part))


def _pairs_of_chain(terms: list[int]) -> Iterator[Pair]:
    for i, a in enumerate(terms):
        yield from (pair_of(a, b) for b in terms[i + 1 :])
        if i + 1 < len(terms):
            yield pair_of(sum(terms[: i + 1]), terms[i + 1])


def roles(split: Split, *, percent: int = 20, least: int = 20) -> dict[Pair, Role]:
    """The role of each training pair: for the expert, or for a half of its card.

    In every range ``percent`` of the pairs, and at least ``least``, are set
    aside, chosen by a hash.  Every second one goes to the ``fit`` half of the
    card, the others to the ``gate`` half.  A sum with a single
    training pair keeps that pair for training.
    """
    pairs = split.train_pairs()
    counts = Counter(sum(pair) for pair in pairs)
    result: dict[Pair, Role] = dict.fromkeys(pairs, "train")
    for name, _, _ in RANGES:
        own = in_range(pairs, name)
        wanted = max(len(own) * percent // 100, least)
        free = (p for p in own if counts[sum(p)] > 1)
        aside = sorted(free, key=lambda p: hashed(f"card {p[0]}+{p[1]}"))[:wanted]
        result.update(dict.fromkeys(aside[::2], "fit"))
        result.update(dict.fromkeys(aside[1::2], "gate"))
    return result


def pairs_with(split: Split, role: Role) -> tuple[Pair, ...]:
    """The training pairs that have one role (see :func:`roles`)."""
    return tuple(p for p, r in roles(split).items() if r == role)


def share_of(pairs: Iterable[Pair], share: float) -> tuple[Pair, ...]:
    """The share (0..1) of ``pairs`` that a hash of each pair selects."""
    limit = round(share * 10_000)
    return tuple(p for p in pairs if hashed(f"share {p[0]}+{p[1]}") % 10_000 < limit)


def in_range(pairs: Iterable[Pair], name: str) -> tuple[Pair, ...]:
    """The pairs whose sum lies in the range ``name``."""
    return tuple(p for p in pairs if range_of(sum(p)) == name)
