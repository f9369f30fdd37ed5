"""Sheets of worked exercises in arithmetic, without held-out pairs of operands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from red_lab.arithmetic import Split
from red_lab.generative.documents import Document

__all__ = ["sheet", "sheets"]

Operands = Callable[[random.Random], tuple[int, ...]]


def _number(rng: random.Random) -> int:
    """Return a number of one, two or three digits, each length equally often."""
    return rng.randrange(10 ** rng.randint(1, 3))


def _two(rng: random.Random) -> tuple[int, ...]:
    return _number(rng), _number(rng)


def _falling(rng: random.Random) -> tuple[int, ...]:
    return tuple(sorted(_two(rng), reverse=True))


EXERCISES: dict[str, tuple[tuple[Operands, Callable[..., str]], ...]] = {
    "sums": (
        (_two, lambda a, b: f"{a} + {b} = {a + b}"),
        (_two, lambda a, b: f"What is {a} plus {b}? It is {a + b}."),
    ),
    "differences": (
        (_falling, lambda a, b: f"{a} - {b} = {a - b}"),
        (_falling, lambda a, b: f"What is {a} minus {b}? It is {a - b}."),
    ),
    "products": (
        (
            lambda rng: (_number(rng), rng.randint(0, 12)),
            lambda a, b: f"{a} * {b} = {a * b}",
        ),
        (
            lambda rng: (rng.randint(0, 12), rng.randint(0, 99)),
            lambda a, b: f"What is {a} times {b}? It is {a * b}.",
        ),
    ),
    "quotients": (
        (
            lambda rng: (rng.randint(0, 99), rng.randint(1, 12)),
            lambda a, b: f"{a * b} / {b} = {a}",
        ),
        (
            lambda rng: (_number(rng), rng.randint(2, 12)),
            lambda a, b: f"{a} / {b} = {a // b} remainder {a % b}",
        ),
    ),
    "longer sums": (
        (
            lambda rng: (*_two(rng), _number(rng)),
            lambda a, b, c: f"{a} + {b} + {c} = {a + b} + {c} = {a + b + c}",
        ),
        (
            lambda rng: (_number(rng), rng.randint(2, 12), _number(rng)),
            lambda a, b, c: (
                f"{a} * {b} + {c}: first {a} * {b} = {a * b}, then {a * b} + {c} = {a * b + c}"
            ),
        ),
    ),
}
"""Kind → its two forms: how operands are drawn, and the line they become."""


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
    names = rng.sample(sorted(EXERCISES), rng.randint(2, len(EXERCISES)))
    lines = [f"Sheet {number}: {', '.join(names)}."]
    lines += [
        f"{place}. {_allowed(rng, split, rng.choice(names))}"
        for place in range(1, rng.randint(20, 60) + 1)
    ]
    return "\n".join(lines) + "\n"


def _allowed(rng: random.Random, split: Split, name: str) -> str:
    while True:
        operands, write = rng.choice(EXERCISES[name])
        line = write(*operands(rng))
        if split.allows(line):
            return line
