"""Gated composition: a gate that can only attenuate the base's output, and starts fully open.

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
    """Return min(1, 2σ(logits)): in [0, 1], and exactly 1 for logits ≥ 0.

    Above 0 the gradient is that at 0 (straight-through), so that an open gate can close again.

    Args:
        logits: Of any shape ``(...)``.

    Returns:
        The gate ``(...)``.
    """
    return 2 * torch.sigmoid(straight_through(logits.clamp(max=0), logits))


class Gated(nn.Module):
    """A base multiplied by a gate that is computed from the same x.

    At `strength` 0 the output is bitwise identical to the base's for any gate. The first gradient
    then reaches `strength` only; the gate's own weights get one once `strength` is not 0.

    Args:
        base: A module that maps ``(..., D_in)`` to ``(..., D_out)``.
        gate: A module that maps the same widths; its outputs are logits.
        strength: s, learned; use 1 for an already trained gate.
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
