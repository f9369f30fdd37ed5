"""Where experts read: the bus vector, with one chunk more for every tap beside it.

    h̃ = [ h | r_1 | r_2 | … ]        (N, D + D_1 + D_2 + …)
    z̃ = [ LayerNorm(h) | LayerNorm(r_1) | G_2 | … ]

An expert that reads at an inner block gets the chunk of that block, normalised like the bus. What
an expert that writes at an inner block adds to h is itself a chunk, G
(`core.backbones.taps.grafted`), and is not normalised. Without taps h̃ is h and nothing here does
anything.

The router reads z; where text is generated also what was said before, a chunk of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["ROUTER", "Chunk", "Layout", "WideNorm"]

ROUTER = ""
"""The reader's name, which no expert can have, of a chunk that the router reads beside z."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Some of what experts read.

    Attributes:
        key: What names its rows in the feature cache, beside the backbone.
        width: How many numbers it is.
        normalised: Whether the bus norm is applied to it.
        compute: Texts → the chunk ``(N, width)``; None where it follows from h.
        readers: The experts that read it, by id; or `ROUTER`.
    """

    key: str
    width: int
    normalised: bool
    compute: Callable[[Sequence[str]], Tensor] | None
    readers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """h and the chunks beside it.

    Attributes:
        width: D.
        chunks: In their order in h̃.
    """

    width: int
    chunks: tuple[Chunk, ...] = ()

    @property
    def whole(self) -> int:
        """The width of h̃."""
        return self.width + sum(c.width for c in self.chunks)

    def has(self, reader: str) -> bool:
        """Say whether an expert reads a chunk of its own choice."""
        return any(reader in c.readers for c in self.chunks)

    def narrow(self, wide: Tensor) -> Tensor:
        """Return h or z ``(…, D)`` of h̃ or z̃."""
        return wide[..., : self.width] if self.chunks else wide

    def hear(self, wide: Tensor) -> Tensor:
        """Return what the router reads of z̃: z and the chunks that are its own, ``(…, W)``."""
        parts, start = [self.narrow(wide)], self.width
        for chunk in self.chunks:
            if ROUTER in chunk.readers:
                parts.append(wide[..., start : start + chunk.width])
            start += chunk.width
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def read(self, wide: Tensor, reader: str) -> Tensor:
        """Return what an expert reads of z̃: its chunk, or z ``(…, D)``."""
        start = self.width
        for chunk in self.chunks:
            if reader in chunk.readers:
                return wide[..., start : start + chunk.width]
            start += chunk.width
        return self.narrow(wide)

    def widen(self, rows: Tensor) -> Tensor:
        """Return h̃ or z̃ ``(…, whole)``, zeros for unknown chunks: their readers are silent."""
        missing = self.whole - rows.shape[-1] if self.chunks else 0
        return nn.functional.pad(rows, (0, missing)) if missing else rows


class WideNorm(nn.Module):
    """The bus norm on h and on every chunk that wants it.

    Args:
        norm: h → z.
        layout: Where they are.
    """

    def __init__(self, norm: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.norm, self.layout = norm, layout

    def forward(self, wide: Tensor) -> Tensor:
        """Return z̃ for h̃ ``(B, …)``."""
        parts, start = [self.norm(self.layout.narrow(wide))], self.layout.width
        for chunk in self.layout.chunks:
            rows = wide[..., start : start + chunk.width]
            known = rows.any(-1, keepdim=True)  # zeros are "not known", and stay zeros
            normed = self.norm_of(rows) * known if chunk.normalised else rows
            parts.append(normed)
            start += chunk.width
        return torch.cat(parts, dim=-1)

    def norm_of(self, rows: Tensor) -> Tensor:
        """Normalise a chunk ``(…, width)`` by its own mean and spread."""
        eps = float(getattr(self.norm, "eps", 1e-5))
        return nn.functional.layer_norm(rows, rows.shape[-1:], eps=eps)
