"""Selection alone: whose text it is, for those who run the experts with another engine.

One pass of the backbone and the router; no expert is built, nor need its weights be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..backbones.backbone import Backbone
from ..backbones.tokens import context_layout, start_of, tokenize, with_contexts
from ..bus.signals import QUERY, SIGNALS, BusRouter
from ..bus.tasks import Unit
from ..types import as_list


@dataclass(frozen=True, kw_only=True)
class Route:
    """Whose text it is.

    Attributes:
        input: The text.
        expert: The column with the largest weight: an expert's id, or `backbone`.
        weights: α by column.
        generation: The generation whose router it was.
        cut: How many tokens of the text were read, where it has more; None where all were.
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
        backbone: What encodes texts; what experts read beside h is not computed.
        norm: h → z.
        router: What is asked; it reads z alone.
        columns: What it weighs.
        generation: The number it was published under, if it was.

    Raises:
        UsageError: If the router has to ask experts.
    """

    backbone: Backbone
    norm: nn.Module
    router: BusRouter
    columns: tuple[str, ...]
    generation: int | None = None

    def __post_init__(self) -> None:
        """Refuse a router whose weights need experts."""
        if needed := self.router.reads & {*SIGNALS, QUERY}:
            raise UsageError(
                "selection alone runs no expert, and this router asks them",
                expected="a router that reads the text alone, such as ridge or statistics",
                found=f"{getattr(self.router, 'kind', 'one')}, which reads {min(needed)}",
                hint="Compose with another: 'redhost recompose --router ridge'.",
            )

    def route(self, texts: str | Iterable[str]) -> list[Route]:
        """Say of one text, or of texts one by one in the order given, whose each is.

        Args:
            texts: The texts; where text is generated, prompts.

        Raises:
            InputTypeError: If it is anything else.
        """
        texts = as_list(texts, str, "text")
        weights = self.weights(texts)
        best, rows = weights.argmax(-1).tolist(), weights.tolist()
        return [
            Route(
                input=str(text),  # a table may hold a kind of its own
                expert=self.columns[k],
                weights=dict(zip(self.columns, row, strict=True)),
                generation=self.generation,
                cut=cut,
            )
            for text, k, row, cut in zip(texts, best, rows, self.backbone.cuts(texts), strict=True)
        ]

    def weights(self, texts: Sequence[str]) -> Tensor:
        """Return α ``(N, K)``: of a prompt, after its last token."""
        if not texts:
            return torch.zeros(0, len(self.columns))
        with torch.inference_mode():
            return self.router.weights(self._read(texts))

    def _read(self, texts: Sequence[str]) -> Tensor:
        """Return what the router reads, ``(N, W)``."""
        trunk = self.backbone.trunk
        if self.backbone.task.unit is not Unit.TOKEN:
            z: Tensor = self.norm(trunk.encode(texts))
            return z
        ids = [[start_of(trunk), *(tokenize(trunk, text) if text else ())] for text in texts]
        return self._last(row[: trunk.longest] for row in ids)

    def after(self, prompts: Iterable[Sequence[int]]) -> Tensor:
        """Return α ``(N, K)`` after tokens by number, where text is generated."""
        return self.router.weights(self._last(prompts))

    def _last(self, prompts: Iterable[Sequence[int]]) -> Tensor:
        """Return what the router reads after the last token of each prompt, ``(N, W)``."""
        trunk, width, rows = self.backbone.trunk, self.backbone.width, list[Tensor]()
        for ids in prompts:
            with trunk.lock:
                tokens = torch.tensor([list(ids)], device=trunk.device)
                h = trunk.hidden_states(tokens)[0].float().cpu()
            rows.append(with_contexts(h, context_layout(width), eps=self.backbone.eps)[-1:])
        read = torch.cat(rows)
        return torch.cat([self.norm(read[:, :width]), read[:, width:]], dim=-1)
