"""A family of arbitrarily many small domains: sums with one fixed number, which the text names.

Domain 1437 asks "1437: What is 59 plus 1437?" and answers the last digit of the sum, halved: five
answers per domain. Every operand is larger than 50, so no pair of the seed's task occurs. The tiny
backbone's features identify the number of a text only weakly: neighbouring numbers have similar
features, and a neighbour's expert gives other answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import redhost

__all__ = ["SIZES", "Role", "SumDomain", "domains"]

Role = Literal["train", "fit", "gate", "test"]

SIZES: dict[Role, int] = {"train": 96, "fit": 24, "gate": 8, "test": 8}
"""Rows of each role, in the order in which they are drawn."""

FIRST = 1000
OPERANDS = range(51, 200)
ANSWERS = 5
BLOCKS = 19
RANKS = (4, 8, 12, 16, 24, 32, 16, 8)
SHAPES: tuple[tuple[str, Literal["hidden", "labels"]], ...] = (
    ("residual", "hidden"),
    ("residual", "hidden"),
    ("mlp", "hidden"),
    ("residual", "hidden"),
    ("residual", "hidden"),
    ("mlp", "hidden"),
    ("residual", "hidden"),
    ("residual", "labels"),
)


@dataclass(frozen=True)
class SumDomain:
    """One domain of the family.

    Attributes:
        place: Its index in the family, from 0.
    """

    place: int

    @property
    def number(self) -> int:
        """The number in all of its questions."""
        return FIRST + self.place

    @property
    def id(self) -> str:
        """The id of its expert."""
        return f"sum{self.number}"

    @property
    def module(self) -> str:
        """The package of its expert."""
        return f"scale_{self.id}"

    @property
    def settings(self) -> redhost.authoring.ExpertSettings:
        """The settings of its expert: forms, spaces and ranks vary over the domains."""
        form, space = SHAPES[self.place % len(SHAPES)]
        return redhost.authoring.ExpertSettings(
            form=form,
            space=space,
            rank=RANKS[self.place % len(RANKS)],
            epochs=100,
            batch=SIZES["train"],
            learning_rate=3e-2,
            weight_decay=0.01,
            dropout=0.0,
            off_domain=1e-2,
            seed=self.place,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Its answers: five of the backbone's labels, or labels of its own."""
        if self.settings.space == "labels":
            return tuple(f"{self.number}/{answer}" for answer in range(ANSWERS))
        start = 2 + ANSWERS * (self.place % BLOCKS)
        return tuple(str(start + answer) for answer in range(ANSWERS))

    def rows(self) -> dict[Role, list[redhost.Row]]:
        """Return its rows by role; roles are disjoint."""
        rng = random.Random(f"scale {self.number}")  # noqa: S311  (no secret)
        drawn = rng.sample(OPERANDS, sum(SIZES.values()))
        found: dict[Role, list[redhost.Row]] = {}
        for role, size in SIZES.items():
            found[role] = [self._row(b) for b in drawn[:size]]
            drawn = drawn[size:]
        return found

    def _row(self, b: int) -> redhost.Row:
        answer = (self.number + b) % 10 // 2
        text = f"{self.number}: What is {b} plus {self.number}?"
        return redhost.Row(text=text, label=self.labels[answer], domain=self.id)


def domains(places: Sequence[int]) -> Iterator[SumDomain]:
    """Yield the domains at some indices."""
    yield from map(SumDomain, places)
