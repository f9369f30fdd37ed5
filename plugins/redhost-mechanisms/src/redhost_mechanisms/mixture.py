"""Sparse mixture of experts: k of E experts for every row.

    y = Σ_{i in top k} w_i(x) · f_i(x)

Source: seed 003, section "Sparse Gating"; Shazeer et al. 2017, "Outrageously large neural
networks", equations 1 to 5. The weights are those of `top_k`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .dispatch import dispatch
from .hard_routing import check_router
from .naming import numbered
from .top_k import Routing, check_k, noisy_top_k
from .widths import check_width, common_widths

__all__ = ["SparseMixture"]


class SparseMixture(nn.Module):
    """Experts with k chosen for every row; only those run, each once on all its rows.

    `route` and `combine` are the two halves of `forward`. A training loop calls them separately
    to get the probabilities and indices that `load_balancing_loss` takes.

    Args:
        gate: A module that maps ``(..., D_in)`` to logits ``(..., E)``.
        experts: E parts from D_in to D_out.
        k: Number of experts chosen for a row.
        renormalise: As in `top_k`.
        noise: The standard deviation of the noise on the logits, while training only. A module
            from D_in to E learns it: softplus(noise(x)), Shazeer's equation 4.
        generator: Generator of the noise.

    Raises:
        ValueError: Widths differ, k is not from 1 to E, or noise has no generator.
    """

    def __init__(
        self,
        *,
        gate: nn.Module,
        experts: Iterable[nn.Module],
        k: int,
        renormalise: bool | None = None,
        noise: float | nn.Module = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.gate, self.experts, self.noise = gate, nn.ModuleList(experts), noise
        widths = common_widths(numbered([*self.experts], what="expert"), who="SparseMixture")
        check_router(gate, self.experts, name="gate", who="SparseMixture")
        if isinstance(noise, nn.Module):
            check_router(noise, self.experts, name="noise", who="SparseMixture")
        if noise != 0.0 and generator is None:
            raise ValueError("SparseMixture: noise is drawn from a generator, found none")
        check_k(k, experts=len(self.experts), renormalise=renormalise)
        self.input_width, self.output_width = widths.input, widths.output
        self.k, self.renormalise, self.generator = k, renormalise, generator

    def route(self, x: Tensor) -> Routing:
        """Return the routing of the rows of x ``(..., D_in)``."""
        check_width(x, self.input_width, who="SparseMixture")
        return noisy_top_k(
            self.gate(x),
            k=self.k,
            noise=self._noise(x),
            generator=self.generator,
            training=self.training,
            renormalise=self.renormalise,
        )

    def combine(self, x: Tensor, routing: Routing) -> Tensor:
        """Return the weighted sum of outputs ``(..., D_out)`` for x ``(..., D_in)``."""
        check_width(x, self.input_width, who="SparseMixture")
        rows, k = x.reshape(-1, self.input_width), routing.indices.shape[-1]  # (N, D_in)
        indices = routing.indices.reshape(len(rows), k)
        answers = dispatch(
            self.experts, rows, indices, output_width=self.output_width
        )  # (N, k, D_out)
        weights = routing.weights.reshape(len(rows), k, 1).to(answers.dtype)
        return (weights * answers).sum(dim=1).reshape(*x.shape[:-1], self.output_width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``."""
        return self.combine(x, self.route(x))

    def _noise(self, x: Tensor) -> float | Tensor:
        if not self.training:  # No noise is added, so it is not computed either.
            return 0.0
        if isinstance(self.noise, nn.Module):
            return nn.functional.softplus(self.noise(x))
        return self.noise
