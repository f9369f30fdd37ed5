"""One model or several: what the cards of installed experts say, before anybody trains anything.

On the cards' gate rows, which nobody learnt from, with r_k(x) = p_k(x)/p̄(x) from a calibrated
classifier of domains that is solved from the fit rows (K of them, all alike in p̄):

    JSD    = 1/K Σ_k E_k[log r_k / mean_j r_j]               how far apart the texts are
    C      = max over λ of Σ_k λ_k E_k[log r_k / Σ_j λ_j r_j]   the same at the hardest mixture
    cost_k = E_k KL(p_k(y|x) ‖ Σ_j w_j(x) p_j(y|x)),  w_j ∝ r_j   what merging costs domain k

cost_k is what the best model that is not given the domain loses on it, one model or a router over
several, if every expert is right about its own domain; it is 0 where domains never share a text, or
agree on those they share. JSD and C are estimates from below, since a classifier is not perfect.
The last figure is `theorem`'s bound at λ = 1/K, with ε_k the expert's own loss (a row has one right
label), and the overlap E_k[−log σ_k r_k p_k(y|x) / Σ_j σ_j r_j p_j(y|x)] at the hardest mixture.

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
from redhost.core.evaluation.with_router import with_router
from redhost.core.routers.cards import gate_rows
from redhost.core.training.expert import fit_temperature
from redhost.core.types import Encode

__all__ = ["Advice", "advise", "capacity_of", "information", "merging_costs", "weighed"]

AGREE = 0.01
"""Nats of the worst domain below which merging is taken to cost nothing."""

CLASH = 0.1
"""Nats above which a text has to come with its domain."""

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
    """What the cards say of merging.

    Attributes:
        choice: ``either``, ``several`` or ``several, and named``.
        sentence: The same in plain words.
        rows: Gate rows by domain.
        divergence: JSD of the domains' texts, all alike, nats.
        most: log K, the largest that it can be.
        capacity: C, nats.
        hardest: λ of C, by domain.
        costs: What merging costs each domain, nats.
        bound: Theorem 3's bound of the divergence under all domains alike, nats.
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
    """Say whether the domains of a composition should be one model or several.

    Args:
        composed: The composition; it is left as it is.
        encode: Texts → h.
        plugins: Who makes routers.

    Raises:
        redhost.UsageError: If it answers no labels, or fewer than two domains have gate rows.
    """
    head = composed.bus.task.head
    if head.vocabulary or not head.distribution:
        raise redhost.UsageError(
            "advice on merging is given for labels alone",
            expected="a composition that answers labels",
            found=head.noun,
        )
    h, rows = gate_rows([composed.cards[i] for i in composed.bus.ids], encode=encode)
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
    """Return log r ``(N, K)`` of features ``(N, D)``: a classifier's posterior, calibrated."""
    signals = bus.signals(bus.norm(h), reads=bus.router.reads)
    logits = bus.router(signals.z, signals)[:, :count].double()
    return torch.log_softmax(logits / fit_temperature(logits, owner), -1) + math.log(count)


def _read(p: Tensor, log_ratio: Tensor, owner: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cost of merging ``(B,)`` and log p_k of the right label ``(B, K)`` of rows."""
    right = p.gather(2, answers[:, None, None].expand(-1, p.shape[1], 1))[..., 0].log()
    return merging_costs(log_ratio, owner, p), right


def weighed(
    ids: Sequence[str], owner: Tensor, log_ratio: Tensor, cost: Tensor, right: Tensor
) -> Advice:
    """Return the advice.

    Args:
        ids: The domains, K of them.
        owner: The row's domain, ``(N,)``.
        log_ratio: log r, ``(N, K)``.
        cost: What merging costs the row, ``(N,)``.
        right: log p_k of the row's right label, ``(N, K)``.
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
        tol: Stop when no domain's D is so far above the mean, nats.
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
