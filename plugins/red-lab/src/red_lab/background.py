"""The tiny backbone's background card: texts that experts are trained to leave unchanged."""

from __future__ import annotations

import itertools
import random
import re

from red_lab.arithmetic import (
    RANGES,
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

__all__ = ["background_rows", "outside_texts"]

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
