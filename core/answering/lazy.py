"""Experts that stay in the store until the router picks them.

What the bus must know of everybody, where an expert writes and which labels it has, is in its
manifest, whose bytes are held to the composed digest like all others. Weights, canary and card are
read, hashed and checked the first time somebody needs them: a thousand idle experts cost a thousand
small manifests, and no weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ...registry.errors import IntegrityError, PluginError, RedhostError
from ...registry.manifest import ExpertManifest
from ..ensemble import CROWD
from ..experts import Expert
from ..learning.cards import Card

__all__ = ["LazyCards", "LazyExpert", "Once", "may_wait"]

T = TypeVar("T")


def may_wait(router: nn.Module, *, experts: int) -> bool:
    """Tell whether a router leaves most experts unasked."""
    chosen: int | None = getattr(router, "chosen", None)
    hears = getattr(router, "reads_evidence", False) or getattr(router, "reads_outputs", False)
    mixes = getattr(router, "output", "residual") == "mixture"
    return chosen is not None and experts > CROWD * chosen and not hears and not mixes


class Once(Generic[T]):
    """A value that is made when first asked for, by one thread; what fails is tried again.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._turn = threading.Lock()

    def __bool__(self) -> bool:
        """Tell whether it is made."""
        return bool(self._made)

    def __call__(self) -> T:
        """Return the value."""
        if not self._made:
            with self._turn:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]


class LazyExpert(Expert):
    """An expert whose weights are read, checked and built when it is first asked.

    Args:
        manifest: Its manifest, checked against the composed digest.
        build: Reads everything else from the store, checks it and builds the expert.
    """

    def __init__(self, manifest: ExpertManifest, build: Callable[[], Expert]) -> None:
        super().__init__(
            space=manifest.writes.space, labels=manifest.labels, temperature=manifest.temperature
        )
        self._part = Once(_named(manifest.id, build))

    @property
    def is_loaded(self) -> bool:
        """Whether somebody has asked it already."""
        return bool(self._part)

    @property
    def precision(self) -> torch.dtype:
        """What its weights are held in."""
        return next((p.dtype for p in self._part().parameters()), torch.float32)

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ(z), ``(B, out)``, for z ``(B, D)``.

        Raises:
            IntegrityError: If what is stored is damaged or gone; the other experts go on.
        """
        delta: Tensor = self._part()(z)
        return delta


class LazyCards(Mapping[str, Card]):
    """Routing cards by expert id, each read from the store when it is looked at.

    Args:
        read: Expert id → what reads its card.
    """

    def __init__(self, read: Mapping[str, Callable[[], Card]]) -> None:
        self._cards = {i: Once(_named(i, make)) for i, make in read.items()}

    def __getitem__(self, expert_id: str) -> Card:
        return self._cards[expert_id]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)


def _named(expert_id: str, make: Callable[[], T]) -> Callable[[], T]:
    """Say whose bytes they are when something fails long after the generation was loaded."""

    def made() -> T:
        try:
            return make()
        except PluginError:
            raise
        except RedhostError as e:
            raise IntegrityError(
                f"stored expert {expert_id!r} cannot be used: {e.problem}",
                expected=e.expected,
                found=e.found,
                hint="Install its package again and run 'redhost recompose'.",
            ) from e

    return made
