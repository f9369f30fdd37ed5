"""The input vector of the experts: the bus vector, plus one segment for every tap.

    h̃ = [ h | r_1 | h'_2 | … ]       (N, D + D_1 + D_2 + …)
    z̃ = [ LayerNorm(h) | LayerNorm(r_1) | h'_2 − h | … ]

An expert that reads at an inner block takes that block's segment as input, normalised like the bus.
An expert that writes at an inner block changes h to h', which is a segment as well
(`backbones.interventions.layout`); the expert's input is then the difference h' − h. An expert may
also bring a segment of its own, which it reads in addition to z (`Expert.segment`). Without
segments h̃ is h, and this module has no effect.

The router reads z and, in generation, the running context, which is a segment of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

ROUTER = ""
"""The reader of a segment that the router reads in addition to z; no expert has this name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSegment:
    """One part of the experts' input.

    Attributes:
        key: Its key in the feature cache, in addition to the backbone's.
        width: Its number of features.
        normalised: Whether the bus norm is applied to it.
        moved: Whether it is h', so that its readers read h' − h.
        own_pass: Whether it is h' of a second pass, made row by row, as an adapter's is.
        compute: Texts → the segment ``(N, width)``; None if it is computed from h.
        readers: The experts that read it, by id; or `ROUTER`.
        instead: Whether it is read instead of z, rather than in addition to z.
    """

    key: str
    width: int
    normalised: bool
    compute: Callable[[Sequence[str]], Tensor] | None
    readers: tuple[str, ...] = ()
    moved: bool = False
    own_pass: bool = False
    instead: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureLayout:
    """h and the segments after it.

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
        """W, the width of the router's input."""
        return self.router_input(torch.empty(0, self.total_width)).shape[-1]

    def parts(self, wide: Tensor) -> list[tuple[FeatureSegment, Tensor]]:
        """Return every segment with its slice of h̃ or z̃, ``(…, width)``."""
        ends = accumulate((s.width for s in self.segments), initial=self.width)
        return [
            (s, wide[..., a:b]) for s, (a, b) in zip(self.segments, pairwise(ends), strict=True)
        ]

    def base(self, wide: Tensor) -> Tensor:
        """Return the part h or z ``(…, D)`` of h̃ or z̃."""
        return wide[..., : self.width] if self.segments else wide

    def router_input(self, wide: Tensor) -> Tensor:
        """Return the part of z̃ that the router reads: z and its own segments, ``(…, W)``."""
        return self.read(wide, ROUTER)

    def read(self, wide: Tensor, reader: str) -> Tensor:
        """Return the part of z̃ that a reader gets: z ``(…, D)``, its segment, or both."""
        if not self.segments:
            return wide
        for segment, numbers in self.parts(wide):
            if reader in segment.readers:
                return numbers if segment.instead else torch.cat([self.base(wide), numbers], -1)
        # An expert without a segment of its own reads z, as all experts of a plain bus do.
        return self.base(wide)

    def fill(self, rows: Tensor, reader: str, numbers: Tensor | None) -> Tensor:
        """Return h̃ or z̃ of rows ``(N, …)``, padded, with the segment that an expert reads.

        Args:
            rows: h or z ``(N, D)``, or h̃ or z̃.
            reader: The expert.
            numbers: Its segment for these rows ``(N, width)``; None if it is unknown, or there.
        """
        wide = self.pad(rows)
        if numbers is not None:
            for segment, place in self.parts(wide):  # views of `wide`
                if reader in segment.readers:
                    place.copy_(numbers)
        return wide

    def moved(self, wide: Tensor) -> list[tuple[FeatureSegment, Tensor]]:
        """Return the segments that are h', each with h' ``(…, D)``; h for rows without a value."""
        h = self.base(wide)
        parts = self.parts(wide) if any(s.moved for s in self.segments) else []
        return [
            # A row of zeros was never computed: with h' = h its Δ is zero.
            (segment, torch.where(rows.any(-1, keepdim=True), rows, h))
            for segment, rows in parts
            if segment.moved
        ]

    def pad(self, rows: Tensor) -> Tensor:
        """Return h̃ or z̃ ``(…, total_width)``, padded with zeros, for which readers add 0."""
        missing = self.total_width - rows.shape[-1] if self.segments else 0
        return nn.functional.pad(rows, (0, missing)) if missing else rows


class WideNorm(nn.Module):
    """The bus norm for h and for every normalised segment; a moved segment becomes h' − h.

    Args:
        norm: h → z.
        layout: Where the segments are.
    """

    def __init__(self, norm: nn.Module, layout: FeatureLayout) -> None:
        super().__init__()
        self.norm, self.layout = norm, layout

    def forward(self, wide: Tensor) -> Tensor:
        """Return z̃ for h̃ ``(B, …)``."""
        h = self.layout.base(wide)  # (B, D)
        parts, moved = [self.norm(h)], dict(self.layout.moved(wide))
        eps = float(getattr(self.norm, "eps", 1e-5))  # a plugin's norm may have no eps
        for segment, rows in self.layout.parts(wide):
            computed = rows.any(-1, keepdim=True)  # all zeros means "unknown", and stays zero
            normed = nn.functional.layer_norm(rows, rows.shape[-1:], eps=eps) * computed
            parts.append(normed if segment.normalised else rows)
            if segment in moved:
                # The step inside the blocks, seen from the bus: Δ = h' − h, added like any other.
                parts[-1] = moved[segment] - h
        return torch.cat(parts, dim=-1)
