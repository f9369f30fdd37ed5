"""Jensen–Shannon divergence of the domains, estimated with their experts.

    JSD_λ = Σ_k λ_k E_{x∼p_k} [ log π_k(x) − log π_λ(x) ],    λ uniform

For whole passages it is at most H(λ) = log K, reached when every passage identifies its domain. For
one token it is the mean over tokens of the divergence of the experts' next-token distributions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.generative.study.context import StudyContext, slices
from red_lab.generative.study.tables import Tables, totals

__all__ = ["divergences", "passage_divergence", "token_divergence"]


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
    whole, tokens, scales, sizes, alike = [], [], list[float](), 0, 0
    for domain in context.domains:
        part = context.part(domain, "test")
        whole.append(totals(part, tables.experts_of(domain, "test")))
        sizes, alike = sizes + sum(part.sizes), alike + len(part.sizes)
        scales.append(part.scale)
        every = max(1, len(part) // context.setting.divergence)
        tokens.append(_tokens(context, part.h[::every], list(experts.values())))
    nats = passage_divergence(whole)
    return {
        "passage_nats": nats,
        "most_nats": math.log(len(context.domains)),
        "bits_per_byte": nats / math.log(2) / (sizes / alike),
        "token_nats": sum(tokens) / len(tokens),
        "token_bits_per_byte": sum(t * s for t, s in zip(tokens, scales, strict=True))
        / len(tokens),
        "token_nats_by_domain": dict(zip(context.domains, tokens, strict=True)),
    }


def _tokens(context: StudyContext, h: Tensor, experts: Sequence[redhost.Expert]) -> float:
    total = 0.0
    with torch.inference_mode():
        for piece in slices(len(h), cost=len(context.head) * len(experts)):
            logits = [context.logits(h[piece], expert=e) for e in experts]
            log_p = torch.log_softmax(torch.stack(logits, dim=1), dim=-1)
            total += float(token_divergence(log_p).sum())
    return total / len(h)
