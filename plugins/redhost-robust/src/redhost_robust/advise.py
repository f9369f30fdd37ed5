"""One model or several: an estimate from the cards of composed experts, before any training.

The figures are computed on the cards' gate rows, which no expert was trained on. The density ratio
r_k(x) = p_k(x)/p̄(x) comes from a calibrated classifier of the K domains, solved from the fit rows
(p̄ is the uniform mixture of the domains):

    JSD    = 1/K Σ_k E_k[log r_k / mean_j r_j]               how far apart the texts are
    C      = max over λ of Σ_k λ_k E_k[log r_k / Σ_j λ_j r_j]   the same at the hardest mixture
    cost_k = E_k KL(p_k(y|x) ‖ Σ_j w_j(x) p_j(y|x)),  w_j ∝ r_j   loss of domain k by merging

cost_k is the loss on domain k of the best model that is not given the domain (one model, or several
with a router), if every expert is exact on its own domain. It is 0 if domains share no text, or
agree on shared ones. JSD and C are estimates from below, since the classifier is not perfect.
The last figure is the bound of `theorem` at λ = 1/K, where ε_k is the expert's own loss (a row has
one correct label) and the overlap at the hardest mixture is
E_k[−log σ_k r_k p_k(y|x) / Σ_j σ_j r_j p_j(y|x)].

Source: seed 002 (arXiv 2602.17554), Theorem 3 and the Jensen–Shannon gap; C by Blahut–Arimoto.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import torch
from torch import Tensor

import redhost
from redhost.core.batching import batched_slices
from redhost.core.bus.temperature import fit_temperature
from redhost.core.evaluation.with_router import with_router
from redhost.core.routers.cards import gate_rows
from redhost.core.types import Encode

__all__ = ["Advice", "advise", "capacity_of", "information", "merging_costs", "weighed"]

AGREE = 0.01
"""Cost on the worst domain, in nats, up to which merging counts as free."""

CLASH = 0.1
"""Cost on the worst domain, in nats, above which the caller has to name a text's domain."""

STEPS = 2000
LEAST = 1e-12

Choice = Literal["either", "several", "several, and named"]

SENTENCES: dict[Choice, str] = {
    "either": "one model would answer as well as several: no text is answered differently by two "
    "domains that could both have sent it. Several are worth it where they ship apart; `redhost "
    "merge` makes one of them",
    "several": "keep several. Domains share texts and answer them differently, and the router "
    "mostly identifies the domain from the text",
    "several, and named": "keep several, and let the caller name the domain. Domains share texts "
    "and answer them differently; no router and no single model can tell from the text alone",
}


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice on merging, computed from the cards.

    Attributes:
        choice: ``either``, ``several`` or ``several, and named``.
        sentence: The same in plain words.
        rows: Number of gate rows by domain.
        divergence: JSD of the domains' texts with uniform weights, nats.
        most: log K, the largest possible `divergence`.
        capacity: C, nats.
        hardest: The maximising λ of C, by domain.
        costs: Cost of merging for each domain, nats.
        bound: Theorem 3's bound on the divergence under the uniform mixture of domains, nats.
    """

    choice: Choice
    sentence: str
    rows: dict[str, int]
    divergence: float
    most: float
    capacity: float
    hardest: dict[str, float]
    costs: dict[str, float]
    bound: float


def advise(
    composed: redhost.ComposedModel,
    *,
    encode: Encode,
    plugins: redhost.plugins.Plugins,
) -> Advice:
    """Report whether the domains of a composition should be one model or several.

    Args:
        composed: The composition; it is not changed.
        encode: Texts → h.
        plugins: The plugins that build routers.

    Raises:
        redhost.UsageError: If the composition has no labels, or fewer than two domains have gate
            rows.
    """
    if not composed.bus.task.one_label:
        raise redhost.UsageError(
            "advice on merging is given for labels alone",
            expected="a composition that answers labels",
            found=composed.bus.task.head.noun,
        )
    h, rows = gate_rows(
        [composed.cards[i] for i in composed.bus.ids], encode=encode, backbone=composed.backbone
    )
    ids = [i for i in composed.bus.ids if any(r.domain == i for r in rows)]
    if len(ids) < 2:  # noqa: PLR2004
        raise redhost.UsageError(
            "there is no advice on merging",
            expected="two experts whose cards have gate rows",
            found=f"{len(ids)}",
            hint="Cards of 'texts' or 'vectors' have some.",
        )
    routed = with_router(composed, kind="statistics", ids=ids, encode=encode, plugins=plugins)
    owner = torch.tensor([ids.index(str(r.domain)) for r in rows])
    answers = torch.tensor([routed.bus.labels.index(r.label) for r in rows])
    with torch.inference_mode():
        log_ratio = _log_ratio(routed.bus, h, owner, count=len(ids))
        parts = []
        for piece in batched_slices(len(rows), cost=len(ids) * routed.bus.answers):
            z = routed.bus.norm(h[piece])
            p = torch.stack([routed.bus.alone(h[piece], z, k) for k in range(len(ids))], dim=1)
            parts.append(
                _read(p.double().clamp_min(LEAST), log_ratio[piece], owner[piece], answers[piece])
            )
        cost, right = (torch.cat(found) for found in zip(*parts, strict=True))
    return weighed(ids, owner, log_ratio, cost, right)


def _log_ratio(bus: redhost.Bus, h: Tensor, owner: Tensor, *, count: int) -> Tensor:
    """Return log r ``(N, K)`` for features ``(N, D)``: a classifier's calibrated posterior."""
    signals = bus.signals(bus.norm(h), reads=bus.router.reads)
    logits = bus.router(signals.z, signals)[:, :count].double()
    return torch.log_softmax(logits / fit_temperature(logits, owner), -1) + math.log(count)


def _read(p: Tensor, log_ratio: Tensor, owner: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's cost of merging ``(B,)`` and log p_k of its correct label ``(B, K)``."""
    right = p.gather(2, answers[:, None, None].expand(-1, p.shape[1], 1))[..., 0].log()
    return merging_costs(log_ratio, owner, p), right


def weighed(
    ids: Sequence[str], owner: Tensor, log_ratio: Tensor, cost: Tensor, right: Tensor
) -> Advice:
    """Return the advice for measured rows.

    Args:
        ids: The K domains.
        owner: The row's domain, ``(N,)``.
        log_ratio: log r, ``(N, K)``.
        cost: Cost of merging on the row, ``(N,)``.
        right: log p_k of the row's correct label, ``(N, K)``.
    """
    alike = torch.full((len(ids),), 1 / len(ids), dtype=torch.float64)
    divergence = float(alike @ information(log_ratio, owner, alike))
    capacity, hardest = capacity_of(log_ratio, owner)
    costs = _means(cost, owner, len(ids))
    losses = _means(-right.gather(1, owner[:, None])[:, 0], owner, len(ids))
    joint = torch.log_softmax(torch.log_softmax(losses, 0) + log_ratio + right, -1)
    overlap = hardest @ _means(-joint.gather(1, owner[:, None])[:, 0], owner, len(ids))
    choice = _choice(float(costs.max()))
    counts = Counter(owner.tolist())
    return Advice(
        choice=choice,
        sentence=SENTENCES[choice],
        rows={name: counts[k] for k, name in enumerate(ids)},
        divergence=divergence,
        most=math.log(len(ids)),
        capacity=capacity,
        hardest=dict(zip(ids, hardest.tolist(), strict=True)),
        costs=dict(zip(ids, costs.tolist(), strict=True)),
        bound=float(losses.logsumexp(0) - overlap) - divergence,
    )


def _choice(worst: float) -> Choice:
    if worst <= AGREE:
        return "either"
    return "several" if worst <= CLASH else "several, and named"


def information(log_ratio: Tensor, owner: Tensor, mixture: Tensor) -> Tensor:
    """Return E_k[log r_k / Σ_j λ_j r_j] of each domain, ``(K,)``, nats.

    Args:
        log_ratio: log r_k(x) of each row, ``(N, K)``.
        owner: The row's domain, ``(N,)``.
        mixture: λ, ``(K,)``.
    """
    mixed = (log_ratio + mixture.log()).logsumexp(-1)
    own = log_ratio.gather(1, owner[:, None])[:, 0]
    return _means(own - mixed, owner, len(mixture))


def capacity_of(log_ratio: Tensor, owner: Tensor, *, tol: float = 1e-6) -> tuple[float, Tensor]:
    """Return C = max_λ Σ_k λ_k D_k(λ), nats, and its λ ``(K,)``: λ ← λ exp(D), Blahut–Arimoto.

    Args:
        log_ratio: log r_k(x) of each row, ``(N, K)``.
        owner: The row's domain, ``(N,)``.
        tol: Stop once every domain's D is less than this above the λ-weighted mean, nats.
    """
    count = log_ratio.shape[1]
    lam = torch.full((count,), 1 / count, dtype=torch.float64)
    apart = information(log_ratio, owner, lam)
    for _ in range(STEPS):
        if float(apart.max() - lam @ apart) < tol:
            break
        lam = torch.softmax(lam.log() + apart, 0).clamp_min(LEAST)
        lam = lam / lam.sum()
        apart = information(log_ratio, owner, lam)
    return max(0.0, float(lam @ apart)), lam


def merging_costs(log_ratio: Tensor, owner: Tensor, p: Tensor) -> Tensor:
    """Return KL(p_k(y|x) ‖ Σ_j w_j(x) p_j(y|x)) of each row, ``(N,)``, nats; k is its domain.

    Args:
        log_ratio: log r_k(x) of each row, ``(N, K)``.
        owner: The row's domain, ``(N,)``.
        p: p_k(y|x), ``(N, K, L)``, all above 0.
    """
    mixed = torch.einsum("nk,nkl->nl", torch.softmax(log_ratio, -1), p)
    own = p[torch.arange(len(p)), owner]
    return (own * (own / mixed).log()).sum(-1)


def _means(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """Return the mean of each domain's rows, ``(K,)``."""
    return torch.stack([values[owner == k].mean() for k in range(count)])
