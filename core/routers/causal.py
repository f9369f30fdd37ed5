"""The causal router: γ(k | x_≤t), trained for the worst mixture of domains (seed 002).

    logits = W_r [ z_t | c_t ] + b

with c_t what was said before (`core.generate.context`). It plays the robust router's game over the
experts' next-token probabilities, and answers with the residual sum: one product with the head a
token, however many experts there are.
"""

from __future__ import annotations

from .robust import RobustRouter

__all__ = ["CausalRouter"]


class CausalRouter(RobustRouter):
    """A robust router that answers with the residual sum."""

    kind = "causal"
    output = "residual"
