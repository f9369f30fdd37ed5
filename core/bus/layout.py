"""Where experts read: the bus vector, with one segment more for every tap beside it.

    h̃ = [ h | r_1 | h'_2 | … ]       (N, D + D_1 + D_2 + …)
    z̃ = [ LayerNorm(h) | LayerNorm(r_1) | h'_2 − h | … ]

An expert that reads at an inner block gets the segment of that block, normalised like the bus. What
h becomes through an expert that writes at an inner block is itself a segment, h'
(`backbones.interventions.layout`); the expert reads what that adds to h. Without taps h̃ is h and
nothing here does anything.

The router reads z; where text is generated also the running context, a segment of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

ROUTER = ""
"""The reader's name, which no expert can have, of a segment that the router reads beside z."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSegment:
    """Some of what experts read.

    Attributes:
        key: What names its rows in the feature cache, beside the backbone.
        width: How many numbers it is.
        normalised: Whether the bus norm is applied to it.
        moved: Whether it is h', so that its readers read h' − h.
        own_pass: Whether it is h' of a second pass, made row by row, as an adapter's is.
        compute: Texts → the segment ``(N, width)``; None where it follows from h.
        readers: The experts that read it, by id; or `ROUTER`.
        instead: Whether the router reads it instead of z, not beside it.
    """

    key: str
    width: int
    normalised: bool
    compute: Callable[[Sequence[str]], Tensor] | None
    readers: tuple[str, ...]
    moved: bool = False
    own_pass: bool = False
    instead: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureLayout:
    """h and the segments beside it.

    Attributes:
        width: D.
        segments: In their order in h̃.
    """

    width: int
    segments: tuple[FeatureSegment, ...] = ()

    @property
    def total_width(self) -> int:
        """The width of h̃."""
        return self.width + sum(s.width for s in self.segments)

    @property
    def router_width(self) -> int:
        """W, how many numbers the router reads."""
        return len(range(self.total_width)[self.router_places(self.width)])

    def router_places(self, width: int) -> slice:
        """Return where in z̃ is what the router reads; its own segments are the first.

        Args:
            width: D, of a layout that does not know it as it has no segments.
        """
        own = [s for s in self.segments if ROUTER in s.readers]
        base = self.width if self.segments else width
        end = base + sum(s.width for s in own)
        return slice(base if any(s.instead for s in own) else 0, end)

    def parts(self, wide: Tensor) -> list[tuple[FeatureSegment, Tensor]]:
        """Return every segment with its numbers in h̃ or z̃, ``(…, width)``."""
        ends = accumulate((s.width for s in self.segments), initial=self.width)
        return [
            (s, wide[..., a:b]) for s, (a, b) in zip(self.segments, pairwise(ends), strict=True)
        ]

    def base(self, wide: Tensor) -> Tensor:
        """Return h or z ``(…, D)`` of h̃ or z̃."""
        return wide[..., : self.width] if self.segments else wide

    def router_input(self, wide: Tensor) -> Tensor:
        """Return what the router reads of z̃: z and the segments that are its own, ``(…, W)``."""
        if not self.segments:
            return wide
        return wide[..., self.router_places(wide.shape[-1])]

    def read(self, wide: Tensor, reader: str) -> Tensor:
        """Return what an expert reads of z̃: its segment, or z ``(…, D)``."""
        if not self.segments:
            return wide
        own = (numbers for segment, numbers in self.parts(wide) if reader in segment.readers)
        return next(own, self.base(wide))

    def moved(self, wide: Tensor) -> list[tuple[FeatureSegment, Tensor]]:
        """Return the segments that are h', each with h' ``(…, D)`` of h̃; h where it is unknown."""
        h = self.base(wide)
        parts = self.parts(wide) if any(s.moved for s in self.segments) else []
        return [
            (segment, torch.where(rows.any(-1, keepdim=True), rows, h))
            for segment, rows in parts
            if segment.moved
        ]

    def pad(self, rows: Tensor) -> Tensor:
        """Return h̃ or z̃ ``(…, total_width)``, zeros for unknown segments: their readers add 0."""
        missing = self.total_width - rows.shape[-1] if self.segments else 0
        return nn.functional.pad(rows, (0, missing)) if missing else rows


class WideNorm(nn.Module):
    """The bus norm on h and on every segment that wants it; of a moved h what was added.

    Args:
        norm: h → z.
        layout: Where they are.
    """

    def __init__(self, norm: nn.Module, layout: FeatureLayout) -> None:
        super().__init__()
        self.norm, self.layout = norm, layout

    def forward(self, wide: Tensor) -> Tensor:
        """Return z̃ for h̃ ``(B, …)``."""
        h = self.layout.base(wide)  # (B, D)
        parts, moved = [self.norm(h)], dict(self.layout.moved(wide))
        eps = float(getattr(self.norm, "eps", 1e-5))  # of a plugin's norm nothing is known
        for segment, rows in self.layout.parts(wide):
            known = rows.any(-1, keepdim=True)  # zeros are "not known", and stay zeros
            normed = nn.functional.layer_norm(rows, rows.shape[-1:], eps=eps) * known
            parts.append(normed if segment.normalised else rows)
            if segment in moved:
                parts[-1] = moved[segment] - h
        return torch.cat(parts, dim=-1)
