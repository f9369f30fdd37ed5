"""How the outputs of experts become one: the residual sum, or what a plugin puts in its place."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Combiner(nn.Module):
    """Combines the outputs of all experts that write to one space; derive from it."""

    def forward(self, base: Tensor, alpha: Tensor, delta: Tensor) -> Tensor:
        """Return what the experts make of a row, ``(B, O)``.

        Args:
            base: h ``(B, D)``, or the classifier's logits ``(B, C)``.
            alpha: The weights of n experts, ``(B, n)``.
            delta: Their outputs Δ ``(B, n, O)``; a row may be zeros where its weight is zero.
        """
        raise NotImplementedError


class ResidualSum(Combiner):
    """The built-in one: base + Σ_i α_i Δ_i (seed 001, section 4.4.3)."""

    def forward(self, base: Tensor, alpha: Tensor, delta: Tensor) -> Tensor:
        """Return the residual sum."""
        return base + torch.einsum("bn,bno->bo", alpha, delta)
