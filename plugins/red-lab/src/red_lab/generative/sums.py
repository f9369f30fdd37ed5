"""Sheets of worked exercises in arithmetic, without held-out pairs of operands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from red_lab.arithmetic import Split
from red_lab.generative.documents import Document

__all__ = ["sheet", "sheets"]

Line = Callable[[random.Random], str]


def sheets(split: Split, *, count: int, seed: int) -> Iterator[Document]:
    """Yield sheets of 20 to 60 exercises, one document per sheet."""
    for number in range(count):
        yield Document("sums", f"sheet {number:04d}", sheet(split, number=number, seed=seed))


def sheet(split: Split, *, number: int, seed: int) -> str:
    """Return one sheet; it depends on the seed and its number alone.

    Every sum and difference is written with its operands next to each other, so that
    `Split.allows` finds each pair; exercises that it refuses are drawn again.
    """
    rng = random.Random(f"sheet {seed} {number}")  # noqa: S311  (no secret)
    names = rng.sample(sorted(KINDS), rng.randint(2, len(KINDS)))
    lines = [f"Sheet {number}: {', '.join(names)}."]
    lines += [
        f"{place}. {_allowed(rng, split, KINDS[rng.choice(names)])}"
        for place in range(1, rng.randint(20, 60) + 1)
    ]
    return "\n".join(lines) + "\n"


def _allowed(rng: random.Random, split: Split, kinds: Sequence[Line]) -> str:
    while True:
        line = rng.choice(kinds)(rng)
        if split.allows(line):
            return line


def _number(rng: random.Random) -> int:
    """Return a number of one, two or three digits, each length equally often."""
    return rng.randrange(10 ** rng.randint(1, 3))


def _plus(rng: random.Random) -> str:
    a, b = _number(rng), _number(rng)
    return f"{a} + {b} = {a + b}"


def _plus_in_words(rng: random.Random) -> str:
    a, b = _number(rng), _number(rng)
    return f"What is {a} plus {b}? It is {a + b}."


def _minus(rng: random.Random) -> str:
    b, a = sorted((_number(rng), _number(rng)))
    return f"{a} - {b} = {a - b}"


def _minus_in_words(rng: random.Random) -> str:
    b, a = sorted((_number(rng), _number(rng)))
    return f"What is {a} minus {b}? It is {a - b}."


def _times(rng: random.Random) -> str:
    a, b = _number(rng), rng.randint(0, 12)
    return f"{a} * {b} = {a * b}"


def _times_in_words(rng: random.Random) -> str:
    a, b = rng.randint(0, 12), rng.randint(0, 99)
    return f"What is {a} times {b}? It is {a * b}."


def _share(rng: random.Random) -> str:
    a, b = rng.randint(0, 99), rng.randint(1, 12)
    return f"{a * b} / {b} = {a}"


def _share_with_rest(rng: random.Random) -> str:
    a, b = _number(rng), rng.randint(2, 12)
    return f"{a} / {b} = {a // b} remainder {a % b}"


def _chain(rng: random.Random) -> str:
    a, b, c = (_number(rng) for _ in range(3))
    return f"{a} + {b} + {c} = {a + b} + {c} = {a + b + c}"


def _mixed(rng: random.Random) -> str:
    a, b, c = _number(rng), rng.randint(2, 12), _number(rng)
    return f"{a} * {b} + {c}: first {a} * {b} = {a * b}, then {a * b} + {c} = {a * b + c}"


KINDS: dict[str, tuple[Line, ...]] = {
    "sums": (_plus, _plus_in_words),
    "differences": (_minus, _minus_in_words),
    "products": (_times, _times_in_words),
    "quotients": (_share, _share_with_rest),
    "longer sums": (_chain, _mixed),
}
