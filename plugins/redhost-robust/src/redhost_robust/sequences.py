"""All sequences of T symbols, enumerated: a finite alphabet X = Aᵀ with prefixes.

The number is small on purpose: a property of all prefixes can be checked at every prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import GameError
from .probability import Array

__all__ = ["Sequences"]

_MOST_PATHS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """All sequences, the first step varying slowest: path n has the digits of n in base A.

    Attributes:
        symbols: A, at least 1.
        steps: T, at least 1; Aᵀ at most a million.

    Raises:
        GameError: If a number is outside its range.
    """

    symbols: int
    steps: int

    def __post_init__(self) -> None:
        if self.symbols < 1 or self.steps < 1 or self.symbols**self.steps > _MOST_PATHS:
            raise GameError(
                "sequences",
                expected=f"A ≥ 1, T ≥ 1 and at most {_MOST_PATHS} paths",
                found=f"A = {self.symbols}, T = {self.steps}",
            )

    @property
    def paths(self) -> NDArray[np.int64]:
        """Every sequence, ``(X, T)``."""
        digits = np.indices((self.symbols,) * self.steps).reshape(self.steps, -1).T
        return np.ascontiguousarray(digits, dtype=np.int64)

    def prefix_masses(self, measures: Array) -> Array:
        """Return the mass of x_<t for t = 0 … T at every path, ``(K, T + 1, X)``.

        Args:
            measures: A non-negative number for every path, ``(K, X)``; rows need not sum to 1.

        Raises:
            GameError: If there is not one number for each path.
        """
        paths = self.symbols**self.steps
        if measures.ndim != 2 or measures.shape[1] != paths:  # noqa: PLR2004
            raise GameError("measures", expected=f"(K, {paths})", found=f"{measures.shape}")
        masses = []
        for t in range(self.steps + 1):
            prefixes = self.symbols**t
            each = measures.reshape(len(measures), prefixes, -1).sum(axis=2)
            masses.append(np.repeat(each, paths // prefixes, axis=1))
        return np.stack(masses, axis=1)

    def conditionals(self, experts: Array) -> Array:
        """Return π_k(x_t | x_<t) at every path, ``(K, T, X)``; 0 after an impossible prefix."""
        masses = self.prefix_masses(experts)
        before, after = masses[:, :-1], masses[:, 1:]
        return np.asarray(after / np.where(before > 0, before, 1.0))
