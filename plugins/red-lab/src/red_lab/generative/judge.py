"""Every system in bits per byte on test texts, domain by domain, and the domains' divergence.

The Jensen–Shannon divergence of the domains is estimated with their experts:

    JSD_λ = Σ_k λ_k E_{x∼p_k} [ log π_k(x) − log π_λ(x) ],    λ uniform

For whole passages it is at most H(λ) = log K, reached when every passage identifies its domain. For
one token it is the mean over tokens of the divergence of the experts' next-token distributions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.generative.context import StudyContext, slices
from red_lab.generative.gates import GateRows, gate_rows_of
from red_lab.generative.likelihoods import BASE, Tables, bayes_gate, residual_log_p

__all__ = [
    "bits_of",
    "divergences",
    "judge_rarity",
    "judge_systems",
    "mixture_bits",
    "passage_divergence",
    "token_divergence",
]

RESIDUAL = ("balanced", "robust", "robust shares")
"""Routers also evaluated with the residual sum, which takes a head product for each token."""


def bits_of(log_p: Tensor, scale: float) -> float:
    """Return bits per byte of tokens' log p ``(N,)``."""
    return -float(log_p.double().mean()) * scale


def mixture_bits(log_gate: Tensor, rows: GateRows) -> float:
    """Return bits per byte of Σ_j γ_j p_j for log γ ``(N, K)``."""
    return bits_of(torch.logsumexp(log_gate + rows.log_p, dim=1), rows.scale)


def judge_systems(
    context: StudyContext,
    tables: Tables,
    gates: Mapping[str, redhost.Router],
    experts: Mapping[str, redhost.Expert],
) -> dict[str, list[float]]:
    """Return bits per byte by domain of the base, the experts alone, and every router."""
    bits = defaultdict[str, list[float]](list)
    even, modules = torch.full((len(experts),), 1 / len(experts)), list(experts.values())
    for k, domain in enumerate(context.domains):
        part, rows = context.part(domain, "test"), gate_rows_of(context, tables, domain, "test")
        weights = {
            "uniform": even.log().expand(len(rows.x), -1),
            **{name: _logs(gate, rows.x) for name, gate in gates.items()},
            "bayes": torch.cat(bayes_gate(rows.passages(), even)),
        }
        log_p = {BASE: tables.column(BASE, domain, "test")}
        log_p |= {f"expert {d}": rows.log_p[:, j] for j, d in enumerate(context.domains)}
        log_p["oracle"] = rows.log_p[:, k]
        log_p |= {name: torch.logsumexp(g + rows.log_p, dim=1) for name, g in weights.items()}
        for name in RESIDUAL:
            alpha = weights[name].exp()
            log_p[f"{name}, residual"] = residual_log_p(context, part, alpha, modules)
        for name, each in log_p.items():
            bits[name].append(bits_of(each, part.scale))
    return bits


def judge_rarity(
    context: StudyContext, tables: Tables, gates: Mapping[str, redhost.Router]
) -> dict[str, list[float]]:
    """Return bits per byte by domain of the mixtures of some routers."""
    parts = [gate_rows_of(context, tables, domain, "test") for domain in context.domains]
    return {
        name: [mixture_bits(_logs(gate, rows.x), rows) for rows in parts]
        for name, gate in gates.items()
    }


def _logs(gate: redhost.Router, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.log_softmax(gate(x), dim=1)


def passage_divergence(log_p: Sequence[Tensor]) -> float:
    """Return the JSD in nats per passage.

    Args:
        log_p: For every domain k: log π_j(x) of its passages under every expert, ``(P, K)``.
    """
    count = len(log_p)
    per_passage = [
        (rows[:, k] - torch.logsumexp(rows, dim=1) + math.log(count)).mean()
        for k, rows in enumerate(log_p)
    ]
    return float(torch.stack(per_passage).mean())


def token_divergence(log_p: Tensor) -> Tensor:
    """Return the divergence of K next-token distributions, nats: ``(N,)`` for ``(N, K, V)``."""
    mixed = torch.logsumexp(log_p, dim=1) - math.log(log_p.shape[1])
    return (log_p.exp() * (log_p - mixed[:, None])).sum(-1).mean(1)


def divergences(
    context: StudyContext, tables: Tables, experts: Mapping[str, redhost.Expert]
) -> dict[str, Any]:
    """Return the divergence of the domains on test texts: per passage, per byte, per token."""
    parts = [context.part(domain, "test") for domain in context.domains]
    whole, tokens = list[Tensor](), list[float]()
    for domain, part in zip(context.domains, parts, strict=True):
        by_passage = part.by_passage(tables.experts_of(domain, "test"))
        whole.append(torch.stack([rows.double().sum(0) for rows in by_passage]))
        every = max(1, len(part) // context.setting.divergence)
        tokens.append(_mean_over_tokens(context, part.h[::every], list(experts.values())))
    nats, sizes = passage_divergence(whole), [size for part in parts for size in part.sizes]
    in_bits = [t * part.scale for t, part in zip(tokens, parts, strict=True)]
    return {
        "passage_nats": nats,
        "most_nats": math.log(len(context.domains)),
        "bits_per_byte": nats / math.log(2) / (sum(sizes) / len(sizes)),
        "token_nats": sum(tokens) / len(tokens),
        "token_bits_per_byte": sum(in_bits) / len(tokens),
        "token_nats_by_domain": dict(zip(context.domains, tokens, strict=True)),
    }


def _mean_over_tokens(context: StudyContext, h: Tensor, experts: Sequence[redhost.Expert]) -> float:
    total = 0.0
    with torch.inference_mode():
        for piece in slices(len(h), cost=len(context.head) * len(experts)):
            logits = [context.logits(h[piece], expert=e) for e in experts]
            log_p = torch.log_softmax(torch.stack(logits, dim=1), dim=-1)
            total += float(token_divergence(log_p).sum())
    return total / len(h)
