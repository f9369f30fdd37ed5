"""The data: frozen features, and labels in the order of five domains."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from redhost.core.bus.bus import LayerNorm

__all__ = ["DataPart", "Problem"]


@dataclass(frozen=True, kw_only=True, eq=False)
class DataPart:
    """Rows.

    Attributes:
        h: Features ``(N, D)``.
        z: Their LayerNorm ``(N, D)``.
        target: The index of each row's label, ``(N,)``.
        owner: The index of each row's domain, ``(N,)``.
    """

    h: Tensor
    z: Tensor
    target: Tensor
    owner: Tensor

    def __len__(self) -> int:
        return len(self.h)

    def __getitem__(self, rows: Tensor) -> DataPart:
        return DataPart(
            h=self.h[rows], z=self.z[rows], target=self.target[rows], owner=self.owner[rows]
        )

    def of(self, domain: int) -> DataPart:
        """Return the rows of a domain."""
        return self[(self.owner == domain).nonzero()[:, 0]]

    def distinct(self) -> DataPart:
        """Return every input once."""
        first = {row.numpy().tobytes(): n for n, row in reversed([*enumerate(self.h)])}
        return self[torch.tensor(sorted(first.values()))]

    def some(self, rows: int, *, seed: int = 0) -> DataPart:
        """Return a number of rows, the same ones for the same seed; all rows if there are fewer."""
        generator = torch.Generator().manual_seed(seed)
        return self[torch.randperm(len(self), generator=generator)[:rows]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A data set with five domains.

    Attributes:
        name: ``arithmetic`` or ``text``.
        domains: The domains' names, E of them, sorted.
        labels_of: The labels of each domain, disjoint.
        train: The training rows of every system.
        valid: The rows by which settings are chosen.
        test: The test rows.
        clusters: The observation that each test row belongs to.
        norm: h → z.
        classifier: A frozen W_c ``(C, D)`` that experts write through, or None if they have labels
            of their own.
    """

    name: str
    domains: tuple[str, ...]
    labels_of: tuple[tuple[str, ...], ...]
    train: DataPart
    valid: DataPart
    test: DataPart
    clusters: tuple[str, ...]
    norm: LayerNorm
    classifier: Tensor | None

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, domain by domain, C of them."""
        return tuple(itertools.chain.from_iterable(self.labels_of))

    @property
    def width(self) -> int:
        """D."""
        return self.norm.width

    @property
    def rank(self) -> int:
        """R of each residual expert: a quarter of D (seed 001, section 4.5.4)."""
        return max(1, self.width // 4)
