"""Ways to choose an adapter for a prompt: the host's routers, centroids, or at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import redhost_generate
import torch
from torch import Tensor

import redhost
from red_lab.adapters.study import PROMPT, Study
from redhost.core.bus.bus import BACKBONE
from redhost.core.routers import build_router
from redhost.core.routers.base import ColumnData, Router
from redhost.core.routers.cards import Card, background_data, column_data
from redhost.core.types import CardRow

__all__ = ["ROUTERS", "Selection"]

ROUTERS = ("ridge:k=1", "statistics:k=1", "centroid")
"""The host's router kinds: the two that `auto` compares for composed adapters, and one more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Selection from the inputs that a host has: cards, and the backbone's states of prompts.

    Attributes:
        study: The study.
    """

    study: Study

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The adapters' names, in column order."""
        return tuple(sorted(self.study.adapters))

    @cached_property
    def data(self) -> Mapping[str, ColumnData]:
        """A router's training data for each column: all tokens of the cards' fit passages."""
        context, columns = self.study.context, dict[str, ColumnData]()
        for name in self.names:
            rows = [CardRow(text=t, label="", part="fit") for t in self.study.cards[name]]
            card = Card(column=name, kind="texts", rows=tuple(rows), task=context.backbone.task)
            columns[name] = column_data(card, encode_z=self._read, seed=0)
        others = background_data(
            context.background, column=BACKBONE, composed=self.names, encode_z=self._read
        )
        assert others is not None  # noqa: S101  (there is a background card)
        return {**columns, BACKBONE: others}

    def router(self, kind: str, *, names: Sequence[str]) -> tuple[Router, float]:
        """Return a router over these adapters and the backbone, solved as a host does; seconds."""
        columns = (*sorted(names), BACKBONE)
        width = 3 * self.study.context.backbone.width  # z, and its means over two horizons
        router = build_router(kind, redhost.BusConfig(width=width, labels=()), columns, 0)
        assert router is not None  # noqa: S101  (all kinds are built in)
        start = perf_counter()
        router.solve([self.data[name] for name in columns])
        return router, perf_counter() - start

    def chosen(self, router: Router) -> list[str]:
        """Return the column of largest weight after each prompt; `backbone` means no adapter."""
        with torch.inference_mode():
            best = router.weights(torch.stack([x[-1] for x in self.prompts])).argmax(-1).tolist()
        return [router.columns[k] for k in best]

    def nearest(self) -> list[str]:
        """Return the adapter whose card's mean state has the largest cosine with a prompt's."""
        width = self.study.context.backbone.width
        means = torch.stack([self.data[n].z[:, :width].mean(0) for n in self.names])
        prompts = torch.stack([x[:, :width].mean(0) for x in self.prompts])
        cosine = torch.nn.functional.normalize(prompts) @ torch.nn.functional.normalize(means).T
        return [self.names[k] for k in cosine.argmax(-1).tolist()]

    def at_random(self) -> list[str]:
        """Return a random adapter for each prompt."""
        generator = torch.Generator().manual_seed(0)
        picked = torch.randint(len(self.names), (len(self.study.test),), generator=generator)
        return [self.names[k] for k in picked.tolist()]

    @cached_property
    def prompts(self) -> list[Tensor]:
        """The router inputs ``(PROMPT, 3·D)`` of the tokens of each test excerpt's prompt."""
        trunk = self.study.context.backbone.trunk
        ids = [torch.tensor([e.ids[:PROMPT]]) for e in self.study.test]
        with torch.inference_mode():
            return [self._rows(trunk.hidden_states(row)[0]) for row in ids]

    def _read(self, texts: Sequence[str]) -> Tensor:
        """Return the router input of the texts' tokens ``(N, 3·D)``, concatenated."""
        return torch.cat([self._rows(self.study.context.encode([t])) for t in texts])

    def _rows(self, h: Tensor) -> Tensor:
        """Return [z | c] ``(T, 3·D)`` for a text's states ``(T, D)``."""
        eps = self.study.context.backbone.eps
        z = torch.nn.functional.layer_norm(h, h.shape[-1:], eps=eps)
        return torch.cat([z, redhost_generate.contexts(h, eps=eps)], dim=1)
