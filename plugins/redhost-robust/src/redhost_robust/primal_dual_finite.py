"""The stochastic algorithm on a finite game, evaluated exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .divergences import entropies, worst_kl
from .game import Game
from .gate_networks import TabularGate
from .gates import model_of_gate
from .probability import Array
from .source import FiniteSource
from .stochastic_primal_dual import PrimalDualSettings, primal_dual

__all__ = ["PrimalDualResult", "solve_stochastic"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PrimalDualResult:
    """A gate trained on samples, evaluated exactly. It has no certificate: compare `solve_gate`.

    Attributes:
        gate: The average gate, ``(X, K')``, rows in the simplex.
        lambda_: The average mixture, ``(K,)``.
        normaliser: Z_g of the average gate.
        worst: max_k KL(p_k ‖ π_g), nats; too small by log Z where Z > 1.
        worst_normalised: max_k KL(p_k ‖ π_g/Z), nats: comparable with a solver's value.
    """

    gate: Array
    lambda_: Array
    normaliser: float
    worst: float
    worst_normalised: float


def solve_stochastic(
    game: Game,
    *,
    gate: nn.Module | None = None,
    features: Tensor | None = None,
    settings: PrimalDualSettings | None = None,
    seed: int = 0,
) -> PrimalDualResult:
    """Solve the game approximately on samples.

    Args:
        game: Domains and experts.
        gate: Trained in place; a new `TabularGate` by default.
        features: The gate's input for each symbol, ``(X, F)``; by default the symbol's index.
        settings: The hyperparameters.
        seed: Seed of the samples.

    Raises:
        GameError: If the game's value is ∞, or the features do not fit.
    """
    source = FiniteSource(game, features=features, seed=seed)
    trained = TabularGate(game.symbols, len(game.experts)) if gate is None else gate
    table, lam = primal_dual(
        source,
        trained,
        reference=torch.from_numpy(entropies(game.domains)),
        read=lambda: trained(source.inputs).softmax(-1).to(torch.float64),
        settings=settings,
    )
    mean: Array = table.numpy()
    model = model_of_gate(mean, game.experts)
    z = float(model.sum())
    return PrimalDualResult(
        gate=mean,
        lambda_=lam.numpy(),
        normaliser=z,
        worst=worst_kl(game.domains, model),
        worst_normalised=worst_kl(game.domains, model / z),
    )
