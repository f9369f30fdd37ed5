"""Experts that stay in the store until the router picks them.

The bus needs to know of every expert where it writes and which labels it has. Both are in its
manifest, whose bytes are checked against the composed digest like all others. Weights, canary and
card are read, hashed and checked on first use: a thousand idle experts cost a thousand small
manifests, and no weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ...registry.errors import IntegrityError, PluginError, RedhostError
from ...registry.package.manifest import ExpertManifest
from ..bus.experts import Expert
from ..bus.signals import SIGNALS, BusRouter
from ..bus.strategies import SPARSE_THRESHOLD
from ..routers.cards import Card

T = TypeVar("T")


def can_load_lazily(router: BusRouter, experts: int) -> bool:
    """Return whether a router picks few of its experts, and needs no signals of the others."""
    few = router.chosen is not None and experts > SPARSE_THRESHOLD * router.chosen
    return few and not router.reads & SIGNALS.keys() and router.output != "mixture"


class Lazy(Generic[T]):
    """A value made on first use, by one thread; after a failure the next use tries again.

    Args:
        make: Makes the value.
        expert_id: The expert whose stored bytes it is made from, for error messages long after
            the generation was loaded.
    """

    def __init__(self, make: Callable[[], T], expert_id: str = "") -> None:
        self._make, self._expert_id = make, expert_id
        self._made: list[T] = []
        self._turn = threading.Lock()

    def __bool__(self) -> bool:
        """Return whether the value is made."""
        return bool(self._made)

    def __call__(self) -> T:
        """Return the value."""
        if not self._made:
            with self._turn:
                if not self._made:
                    self._made.append(self._try())
        return self._made[0]

    def _try(self) -> T:
        try:
            return self._make()
        except PluginError:
            raise
        except RedhostError as e:
            raise IntegrityError(
                f"stored expert {self._expert_id!r} cannot be used: {e.problem}",
                expected=e.expected,
                found=e.found,
                hint="Install the package if it is gone, then run 'redhost recompose --accept'.",
            ) from e


class LazyExpert(Expert):
    """An expert whose weights are read, checked and built on first use.

    Args:
        manifest: Its manifest, checked against the composed digest.
        build: Reads everything else from the store, checks it and builds the expert.
    """

    def __init__(self, manifest: ExpertManifest, build: Callable[[], Expert]) -> None:
        super().__init__(
            space=manifest.writes.space, labels=manifest.labels, temperature=manifest.temperature
        )
        self.described_by(manifest)
        self._part = Lazy(build, manifest.id)

    @property
    def is_loaded(self) -> bool:
        """Whether its weights are loaded."""
        return bool(self._part)

    @property
    def precision(self) -> torch.dtype:
        """The dtype of its weights."""
        return next((p.dtype for p in self._part().parameters()), torch.float32)

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ(z), ``(B, out)``, for z ``(B, D)``.

        Raises:
            IntegrityError: If its stored bytes are damaged or gone; other experts still answer.
        """
        delta: Tensor = self._part()(z)
        return delta


class LazyCards(Mapping[str, Card]):
    """Routing cards by expert id, each read from the store when accessed.

    Args:
        read: Expert id → a function that reads its card.
    """

    def __init__(self, read: Mapping[str, Callable[[], Card]]) -> None:
        self._cards = {i: Lazy(make, i) for i, make in read.items()}

    def __getitem__(self, expert_id: str) -> Card:
        return self._cards[expert_id]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)
