"""The texts of the tiny language model: what it is pretrained on, and its background card.

Every example of the pretraining text is a question and its answer, from an unlimited stream
without state: the batch of a step depends only on the split, the seed and the step, so training can
stop and resume anywhere. No example contains a pair of operands that its split holds out. The
background card has texts that experts are trained to leave unchanged.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

from red_lab.arithmetic import (
    RANGES,
    Pair,
    Split,
    in_range,
    orders,
    pair_of,
    pairs_in,
    pairs_with,
    prompt,
    roles,
)
from redhost.core.types import BackgroundRow

__all__ = ["Corpus", "Example", "background_rows"]


class Example(NamedTuple):
    """A question, and the continuation that the language model has to predict."""

    question: str
    answer: str


Draw = Callable[[random.Random], Example]


MIXTURE: Mapping[str, float] = {
    "plus": 0.60,  # sums of the training pairs of the domain, operands 1..50
    "wide": 0.30,  # sums with operands 0..99
    "minus": 0.06,  # differences of the same width
    "compare": 0.02,  # which of two numbers is larger
    "times": 0.02,  # products of factors 0..12
}
"""How often each kind of example is drawn."""
LARGEST = 99
"""The largest operand of wide sums, of differences and of comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Seeded batches of examples that a split allows.

    Attributes:
        seed: Random seed of every batch, together with its number.
        draws: One generator for each kind of example.
        weights: How often each is used.
    """

    seed: int
    draws: tuple[Draw, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, split: Split, *, seed: int) -> Self:
        """Return the corpus of a split.

        Args:
            split: What is held out.
            seed: The seed of all batches.
        """
        draws = _draws(split)
        return cls(
            seed=seed,
            draws=tuple(draws[kind] for kind in MIXTURE),
            weights=tuple(MIXTURE.values()),
        )

    def batch(self, step: int, *, size: int) -> list[Example]:
        """Return the ``size`` examples of a step."""
        rng = random.Random(f"corpus {self.seed} {step}")  # noqa: S311  (no secret)
        return [draw(rng) for draw in rng.choices(self.draws, self.weights, k=size)]


def _draws(split: Split) -> dict[str, Draw]:
    """Return one generator per kind of example, each without held-out pairs."""
    home = [ordered for pair in split.train_pairs() for ordered in orders(pair)]
    wide = _allowed(split)
    return {
        "plus": partial(_plus, pairs=home),
        "wide": partial(_plus, pairs=wide),
        "minus": partial(_minus, pairs=wide),
        "compare": _compare,
        "times": _times,
    }


def _allowed(split: Split) -> list[Pair]:
    """Return all ordered training pairs of operands 0..99."""
    pairs = ((a, b) for a in range(LARGEST + 1) for b in range(a, LARGEST + 1))
    return [ordered for p in pairs if not split.holds_out(p) for ordered in orders(p)]


def _plus(rng: random.Random, *, pairs: Sequence[Pair]) -> Example:
    a, b = rng.choice(pairs)
    return Example(prompt(a, b), str(a + b))


def _minus(rng: random.Random, *, pairs: Sequence[Pair]) -> Example:
    a, b = rng.choice(pairs)
    return Example(f"What is {a + b} minus {b}?", str(a))


def _compare(rng: random.Random) -> Example:
    a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    return Example(f"Is {a} more than {b}?", "yes" if a > b else "no")


def _times(rng: random.Random) -> Example:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    return Example(f"What is {a} times {b}?", str(a * b))


THINGS = (
    "bird", "boat", "bread", "bridge", "clock", "cloud", "door",
    "garden", "horse", "house", "lamp", "letter", "river", "tree",
)  # fmt: skip
KINDS = (
    "blue", "brown", "calm", "cold", "green", "heavy", "large",
    "late", "new", "old", "quiet", "red", "small", "warm",
)  # fmt: skip
DEEDS = (
    "falls", "grows", "moves", "opens", "rests", "shines",
    "sings", "sleeps", "stands", "stays", "turns", "waits",
)  # fmt: skip
PLACES = ("above", "behind", "beside", "below", "near", "under")


def background_rows(
    split: Split, *, each: int = 60, outside: int = 200, seed: int = 0
) -> list[BackgroundRow]:
    """Return unlabelled questions of every range, and texts outside all ranges.

    No text uses a held-out pair or a pair on an expert's card, in either order.
    """
    rng = random.Random(f"background {seed}")  # noqa: S311  (no secret)
    found: list[BackgroundRow] = []
    pairs = pairs_with(split, "train")
    for name, _, _ in RANGES:
        own = [ordered for pair in in_range(pairs, name) for ordered in orders(pair)]
        chosen = rng.sample(own, min(each, len(own)))
        found += [BackgroundRow(text=prompt(a, b), domain=name) for a, b in chosen]
    texts = outside_texts(split, count=outside, seed=seed)
    return found + [BackgroundRow(text=text) for text in texts]


def outside_texts(split: Split, *, count: int, seed: int) -> list[str]:
    """Return distinct texts without a sum in 2..100 and without held-out or card pairs."""
    card = {pair for pair, role in roles(split).items() if role != "train"}
    rng = random.Random(f"outside {seed}")  # noqa: S311  (no secret)
    found: dict[str, None] = {}
    while len(found) < count:
        text = _outside(rng)
        clear = split.allows(text) and card.isdisjoint(pairs_in(text))
        if clear and not _mentions(split, text):
            found[text] = None
    return list(found)


def _outside(rng: random.Random) -> str:
    """Return one text; sums have two operands over 50."""
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    large = rng.randint(51, 199), rng.randint(51, 199)
    place, thing, other = rng.choice(PLACES), rng.choice(THINGS), rng.choice(THINGS)
    return rng.choice(
        [
            f"What is {max(a, b)} minus {min(a, b)}?",
            f"What is {large[0]} plus {large[1]}?",
            f"What is {a} times {rng.randint(2, 20)}?",
            f"Is {a} more than {b}?",
            f"The {rng.choice(KINDS)} {thing} {rng.choice(DEEDS)} {place} the {other}.",
            f"Where is the {rng.choice(KINDS)} {thing}?",
        ]
    )


def _mentions(split: Split, text: str) -> bool:
    """Return whether any two numbers of a text are a held-out pair, for any operation."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return any(split.holds_out(pair_of(a, b)) for a, b in itertools.combinations(numbers, 2))
