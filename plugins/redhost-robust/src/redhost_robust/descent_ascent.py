"""The minimax game of robust training: gradient descent on weights, ascent on the domain mixture.

    min over θ of max over λ in the simplex of Σ_k λ_k (ℓ_k(θ) − ref_k)

Every step takes rows of every domain, descends Σ λ_k ℓ_k, and moves λ ∝ λ exp(η s) with s the
smoothed regret (seed 002; MATH section 1, the discriminative game). ref_k is the loss attainable on
domain k. Without it, a hard domain would be treated as a badly served one; ref = 0 is group DRO
(Sagawa and others 2020, arXiv 1911.08731). With η = 0 the mixture stays as given, which is ordinary
training on the average loss, or on a loss that weights domains equally.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from redhost.core.adamw import AdamW, cosine_rates
from redhost.core.types import Progress


@dataclass(frozen=True, kw_only=True)
class MinimaxSettings:
    """The settings of a game.

    Attributes:
        steps: Number of AdamW steps; the learning rate decays to zero along a cosine.
        learning_rate: AdamW's peak learning rate.
        weight_decay: AdamW's weight decay.
        rate_lambda: η; 0 leaves λ at its start.
        smoothing: Smoothing factor of the regrets that move λ.
        floor: Share of λ that is spread evenly, so that every domain keeps some weight.
        every: Steps between two evaluations on held-out rows.
    """

    steps: int = 2000
    learning_rate: float = 5e-3
    weight_decay: float = 0.0
    rate_lambda: float = 0.05
    smoothing: float = 0.9
    floor: float = 0.01
    every: int = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class MinimaxResult:
    """The result of a game.

    Attributes:
        weights: λ ``(K,)`` at the step whose parameters are kept.
        regrets: ℓ_k − ref_k ``(K,)`` of these parameters on held-out rows, in nats.
        step: That step; 0 for the initial parameters.
    """

    weights: Tensor
    regrets: Tensor
    step: int


def minimax(
    module: nn.Module,
    *,
    losses: Callable[[], Tensor],
    aside: Callable[[], Tensor],
    reference: Tensor,
    settings: MinimaxSettings,
    start: Tensor | None = None,
    elsewhere: Callable[[], Tensor] | None = None,
    progress: Progress | None = None,
) -> MinimaxResult:
    """Play the game over a module's parameters; leave the best parameters in it.

    The best have the smallest worst regret on held-out rows; if λ is fixed, the smallest regret
    under it.

    Args:
        module: The module whose parameters descend.
        losses: → ℓ ``(K,)`` with its graph, of a fresh batch of every domain.
        aside: → ℓ ``(K,)`` on held-out rows.
        reference: ref ``(K,)``.
        settings: The settings.
        start: The initial λ ``(K,)``; uniform by default.
        elsewhere: → a loss that is added to that of the game.
        progress: Called with (steps done, steps in all).
    """
    optimizer = AdamW(module.parameters(), weight_decay=settings.weight_decay)
    count = len(reference)
    lam = torch.full((count,), 1 / count) if start is None else start
    best = _check(module, aside, reference, lam, settings, step=0)
    regret = torch.zeros(count)
    rates = cosine_rates(settings.learning_rate, settings.steps)
    for step, rate in enumerate(rates, start=1):
        loss = losses()
        total = (lam * loss).sum()
        optimizer.zero_grad()
        (total if elsewhere is None else total + elsewhere()).backward()  # type: ignore[no-untyped-call]
        optimizer.step(rate)
        fresh = loss.detach() - reference
        keep = 0.0 if step == 1 else settings.smoothing
        regret = keep * regret + (1 - keep) * fresh
        if settings.rate_lambda:
            lam = move_lambda(lam, regret, rate=settings.rate_lambda, floor=settings.floor)
        if step % settings.every == 0 or step == settings.steps:
            now = _check(module, aside, reference, lam, settings, step=step)
            best = now if now.score < best.score else best
        if progress is not None:
            progress(step, settings.steps)
    module.load_state_dict(best.state)
    return best.result


def move_lambda(weights: Tensor, regret: Tensor, *, rate: float, floor: float) -> Tensor:
    """Return λ ``(K,)`` after a multiplicative step along the regrets ``(K,)``, floored.

    λ ← (1 − e) softmax(log λ + η s) + e/K; the floor e lets a domain recover from weight 0.
    """
    moved = torch.softmax(weights.log() + rate * regret, dim=0)
    return (1 - floor) * moved + floor / len(moved)


def mixture_losses(
    gate: Callable[[Tensor], Tensor], rows: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """Return ℓ_k ``(K,)``: −mean over rows of domain k of log Σ_j g_j(z) p_j(y|x), in nats.

    Args:
        gate: z ``(B, D)`` → logits ``(B, K)``.
        rows: By domain: z ``(N, D)``, and log p_j(y|x) of the rows' answers ``(N, K)``.
    """
    mixed = (torch.log_softmax(gate(z), dim=-1) + log_p for z, log_p in rows)
    return torch.stack([-torch.logsumexp(m, dim=-1).mean() for m in mixed])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Check:
    score: float
    state: dict[str, Tensor]
    result: MinimaxResult


def _check(
    module: nn.Module,
    aside: Callable[[], Tensor],
    reference: Tensor,
    lam: Tensor,
    settings: MinimaxSettings,
    *,
    step: int,
) -> _Check:
    with torch.no_grad():
        regrets = aside() - reference
    score = float(regrets.max() if settings.rate_lambda else (lam * regrets).sum())
    return _Check(
        score=score if math.isfinite(score) else math.inf,
        state=copy.deepcopy(module.state_dict()),
        result=MinimaxResult(weights=lam, regrets=regrets, step=step),
    )
