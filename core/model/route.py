"""Routing alone: which expert's domain a text belongs to, for use with other inference engines.

One pass of the backbone and the router; no expert is built, and no expert's weights are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..backbones.backbone import Backbone
from ..bus.signals import QUERY, SIGNALS, BusRouter, RouterSignals
from ..types import as_list


@dataclass(frozen=True, kw_only=True)
class Route:
    """The routing decision for one text.

    Attributes:
        input: The text.
        expert: The column with the largest weight: an expert's id, or `backbone`.
        weights: α by column.
        generation: The generation whose router decided.
        cut: The number of tokens read if the text has more; None if all were read.
    """

    input: str
    expert: str
    weights: dict[str, float]
    generation: int | None
    cut: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Chooser:
    """A backbone and the router of a generation.

    Attributes:
        backbone: The encoder of texts; segments that only experts read are not computed.
        norm: h → z.
        router: The router, which reads z alone, or what follows from the text as well.
        columns: The router's columns.
        generation: The number it was published under, if any.

    Raises:
        UsageError: If the router queries experts.
    """

    backbone: Backbone
    norm: nn.Module
    router: BusRouter
    columns: tuple[str, ...]
    generation: int | None = None

    def __post_init__(self) -> None:
        """Refuse a router that needs experts to compute its weights."""
        of_texts = self.router.of_texts(self.backbone, ())
        if needed := self.router.reads & {*SIGNALS, QUERY} - of_texts.keys():
            raise UsageError(
                "selection alone runs no expert, and this router asks them",
                expected="a router that reads the text alone, such as ridge or statistics",
                found=f"{getattr(self.router, 'kind', 'one')}, which reads {min(needed)}",
                hint="Compose with another: 'redhost recompose --router ridge'.",
            )

    def route(self, texts: str | Iterable[str]) -> list[Route]:
        """Return the routing decision for one text, or for several in the order given.

        Args:
            texts: The texts.

        Raises:
            InputTypeError: If the texts are of another type.
        """
        texts = as_list(texts, str, "text")
        rows = self.weights(texts).tolist()
        return [
            Route(
                input=str(text),  # a table may hold a string type of its own
                expert=self.columns[row.index(max(row))],
                weights=dict(zip(self.columns, row, strict=True)),
                generation=self.generation,
                cut=cut,
            )
            for text, row, cut in zip(texts, rows, self.backbone.cuts(texts), strict=True)
        ]

    def weights(self, texts: Sequence[str]) -> Tensor:
        """Return α ``(N, K)``; for a text that is continued, after its end."""
        if not texts:
            return torch.zeros(0, len(self.columns))
        with torch.inference_mode():
            return self.weights_of(
                self.backbone.task.unit.routed(
                    self.backbone.trunk,
                    texts,
                    width=self.backbone.width,
                    eps=self.backbone.eps,
                ),
                values=self.router.of_texts(self.backbone, texts),
            )

    def weights_of(
        self, rows: Tensor, *, values: Mapping[str, Tensor] = MappingProxyType({})
    ) -> Tensor:
        """Return α ``(N, K)`` of rows h̃ ``(N, …)``, whose first D numbers the bus norm takes.

        Args:
            rows: The rows.
            values: What else the router reads of their texts, by name.
        """
        h, more = rows.tensor_split((self.backbone.width,), dim=-1)
        z = torch.cat([self.norm(h), more], dim=-1)
        return self.router.weights(z, RouterSignals(z, values=values) if values else None)
