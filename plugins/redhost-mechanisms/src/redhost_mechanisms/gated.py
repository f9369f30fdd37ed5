"""Gated composition: a gate can only take away from the base, and begins by taking nothing.

    y = base(x) ⊙ g(s · gate(x)),   g(r) = min(1, 2σ(r)),   s = 0 at first

Source: seed 003, section "Multiplicative (Gating)", whose σ(0) = ½ halves the signal. The scalar s
that starts at 0 is that of Bachlechner et al. 2021, "ReZero is all you need".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .straight_through import straight_through
from .widths import check_width, common_widths

__all__ = ["Gated", "open_gate"]


def open_gate(logits: Tensor) -> Tensor:
    """Return min(1, 2σ(logits)): in [0, 1], and exactly 1 from 0 on.

    Above 0 the gradient is that at 0 (straight through), so that an open gate can close again.

    Args:
        logits: Of any shape ``(...)``.

    Returns:
        The gate ``(...)``.
    """
    return 2 * torch.sigmoid(straight_through(logits.clamp(max=0), logits))


class Gated(nn.Module):
    """A base under a gate that is learned from the same x.

    At `strength` 0 the output is the base's, bit for bit, whatever the gate. The first gradient
    then reaches `strength` only; the gate's own weights follow once it is not 0.

    Args:
        base: Maps ``(..., D_in)`` to ``(..., D_out)``.
        gate: Maps the same widths; its outputs are logits.
        strength: s, learned; 1 for a gate that was trained before.
    """

    def __init__(self, *, base: nn.Module, gate: nn.Module, strength: float = 0.0) -> None:
        super().__init__()
        widths = common_widths({"base": base, "gate": gate}, who="Gated")
        self.input_width, self.output_width = widths.input, widths.output
        self.base, self.gate = base, gate
        self.strength = nn.Parameter(torch.tensor(float(strength)))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``; no entry is larger than the base's."""
        check_width(x, self.input_width, who="Gated")
        y: Tensor = self.base(x)
        return y * open_gate(self.strength * self.gate(x))
