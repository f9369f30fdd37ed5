"""A finite game: the domains that traffic may come from, and the frozen experts.

Nature mixes the domains p_k; the host mixes the experts π_j by a gate at every symbol x:

    min over gates g of max over λ of KL(p_λ ‖ π_g),   p_λ = Σ_k λ_k p_k,   π_g = Σ_j g(x,j) π_j(x)

X is the whole alphabet. With X = ∪ supp p_k, as in the seed, a normalised gate may not exist:
p = δ_a with the expert (.9, .1) gives Z = .9 (docs/departures.md, repairs).

Legend for shapes in this package: K domains, K' experts (K' = K where expert k is domain k's own),
X symbols, T steps of a sequence, B rows of a batch. All values are in nats.

Source: seed 002 (arXiv 2602.17554), sections on G1 and the minimax game.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import GameError
from .probability import Array, probability_rows

__all__ = ["Game", "floored"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """Domains and experts over one finite alphabet.

    Attributes:
        domains: p_k, ``(K, X)``, each row a probability vector.
        experts: π_j, ``(K', X)``, likewise.

    Raises:
        GameError: If a row is not a probability vector, or the alphabets differ.
    """

    domains: Array
    experts: Array

    def __post_init__(self) -> None:
        for name in ("domains", "experts"):
            object.__setattr__(self, name, probability_rows(name, getattr(self, name)))
        if self.domains.shape[1] != self.experts.shape[1]:
            raise GameError(
                "experts",
                expected=f"rows over the domains' alphabet of {self.domains.shape[1]} symbols",
                found=f"{self.experts.shape[1]}",
                hint="Write 0 for what a row never emits.",
            )

    @classmethod
    def of_rows(cls, domains: Any, experts: Any, *, floor: float = 0.0) -> Game:
        """Return the game of two lists of rows.

        Args:
            domains: K rows.
            experts: K' rows.
            floor: η in [0, 1): see `floored`.

        Raises:
            GameError: As `Game`, or if the floor is not in [0, 1).
        """
        game = cls(domains=domains, experts=experts)
        return cls(domains=game.domains, experts=floored(game.experts, weight=floor))

    @property
    def symbols(self) -> int:
        """X, the size of the alphabet."""
        return int(self.domains.shape[1])

    def require_own_experts(self) -> None:
        """Refuse a game that does not have one expert for each domain.

        Raises:
            GameError: If K' ≠ K.
        """
        if len(self.experts) != len(self.domains):
            raise GameError(
                "experts",
                expected=f"one for each of the {len(self.domains)} domains",
                found=f"{len(self.experts)}",
            )

    def require_covered(self) -> None:
        """Refuse a game of value ∞, in which a domain emits a symbol that no expert can.

        Raises:
            GameError: If some p_k(x) > 0 where every π_j(x) = 0.
        """
        lost = (self.domains > 0) & (self.experts.max(axis=0) == 0)
        if lost.any():
            k, x = (int(i[0]) for i in lost.nonzero())
            raise GameError(
                f"domains[{k}]",
                expected="symbols that some expert can emit",
                found=f"probability {self.domains[k, x]:g} at position {x}, 0 in every expert",
                hint="Floor the experts above 0: Game.of_rows(…, floor=1e-6), in JSON 'floor'.",
            )


def floored(experts: Array, *, weight: float) -> Array:
    """Return (1 − η) π + η/X: rows that are at least η/X everywhere and still sum to 1.

    Args:
        experts: π, ``(K', X)``.
        weight: η in [0, 1), the weight of the uniform distribution; 0 changes nothing.

    Raises:
        GameError: If η is not in [0, 1).
    """
    if not 0 <= weight < 1:
        raise GameError("floor", expected="a number in [0, 1)", found=f"{weight}")
    return np.asarray((1 - weight) * experts + weight / experts.shape[1])
