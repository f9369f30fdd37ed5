"""Top-k gating, plain and noisy: the k experts chosen for a row, and their weights.

    p = softmax(H),   H = logits + ε ⊙ noise, ε ∼ N(0, 1) while training only
    weights = p_i / Σ_{top k} p_j   for k ≥ 2,        weights = p_i   for k = 1

A single weight divided by itself is 1 for any gate, so the gate would have no gradient. At k = 1
the weight is therefore the probability itself, as in Switch. At k = E both are the softmax.

Source: seed 003, sections "Sparse Gating" and "Expert Specialization vs Collapse"; Shazeer et al.
2017, "Outrageously large neural networks", equations 3 to 5; Fedus et al. 2021, "Switch
Transformer", equation 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dispatch import probabilities

__all__ = ["Routing", "check_k", "noisy_logits", "noisy_top_k", "top_k"]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The routing of rows to experts.

    Attributes:
        probabilities: The softmax over all experts, ``(..., E)``.
        indices: The chosen experts, most probable first, ``(..., k)``.
        weights: The weights of the chosen experts' outputs, ``(..., k)``.
    """

    probabilities: Tensor
    indices: Tensor
    weights: Tensor

    def dense_weights(self) -> Tensor:
        """Return the weights of all experts, ``(..., E)``; 0 for those not chosen."""
        return torch.zeros_like(self.probabilities).scatter(-1, self.indices, self.weights)


def check_k(k: int, *, experts: int, renormalise: bool | None) -> None:
    """Check that k experts can be chosen, and that their weights can be learned.

    Raises:
        ValueError: k is out of range, or k is 1 of several experts with renormalisation.
    """
    if not 1 <= k <= experts:
        raise ValueError(f"k is between 1 and {experts}, the number of experts, found {k}")
    if renormalise and k == 1 < experts:
        raise ValueError("renormalise at k = 1 makes every weight 1, and the gate learns nothing")


def top_k(logits: Tensor, *, k: int, renormalise: bool | None = None) -> Routing:
    """Choose the k most probable experts of every row.

    Args:
        logits: ``(..., E)``.
        k: From 1 to E.
        renormalise: Whether the chosen weights are scaled to sum to 1. None, the default, does
            so for k ≥ 2; False returns the softmax's own entries.

    Raises:
        ValueError: k is out of range, or k is 1 of several experts with renormalisation.
    """
    check_k(k, experts=logits.shape[-1], renormalise=renormalise)
    p = probabilities(logits)
    weights, indices = p.topk(k, dim=-1)
    if renormalise or (renormalise is None and k > 1):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return Routing(probabilities=p, indices=indices, weights=weights)


def noisy_logits(logits: Tensor, *, noise: float | Tensor, generator: torch.Generator) -> Tensor:
    """Return logits + ε ⊙ noise with ε from a standard normal distribution.

    Args:
        logits: ``(..., E)``.
        noise: The standard deviation, a number or ``(..., E)``.
        generator: Generator of ε; on any device.

    Returns:
        Noisy logits ``(..., E)``.
    """
    drawn = torch.randn(
        logits.shape, generator=generator, device=generator.device, dtype=torch.float32
    )
    return logits + drawn.to(logits) * noise


def noisy_top_k(
    logits: Tensor,
    *,
    k: int,
    noise: float | Tensor,
    generator: torch.Generator | None,
    training: bool,
    renormalise: bool | None = None,
) -> Routing:
    """Choose k experts by noisy logits, and weight them by the same noisy logits.

    Args:
        logits: ``(..., E)``.
        k: From 1 to E.
        noise: The standard deviation, a number or ``(..., E)``.
        generator: Generator of the noise; may be None if `noise` is 0.
        training: Whether noise is added; False adds none.
        renormalise: As in `top_k`.

    Raises:
        ValueError: As `top_k`, or noise is needed and there is no generator.
    """
    if training and (isinstance(noise, Tensor) or noise != 0):
        if generator is None:
            raise ValueError("noise is drawn from a generator, found none")
        logits = noisy_logits(logits, noise=noise, generator=generator)
    return top_k(logits, k=k, renormalise=renormalise)
