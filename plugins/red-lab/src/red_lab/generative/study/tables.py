"""Log-likelihoods of all tokens under every system alone: log p(x_t+1 | x_≤t), computed once.

There is one file for each system and part of a domain, so that an interrupted run resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

import redhost
from red_lab.generative.corpora import Part
from red_lab.generative.study.context import PassageTokens, StudyContext, slices
from red_lab.generative.study.tensor_cache import cached_tensors

__all__ = [
    "BASE",
    "SCORED_PARTS",
    "Tables",
    "answer_log_p",
    "cached_column",
    "residual_log_p",
    "totals",
]

BASE = "base"
SCORED_PARTS: tuple[Part, ...] = ("fit", "gate", "test")


class Tables:
    """log p of the base and of every expert.

    Args:
        context: The texts.
        experts: One seed's experts by domain.
        shared: The folder of the base's tables.
        own: The folder of this seed's tables.
    """

    def __init__(
        self,
        context: StudyContext,
        experts: Mapping[str, redhost.Expert],
        *,
        shared: Path,
        own: Path,
    ) -> None:
        self.context, self.experts, self.shared, self.own = context, experts, shared, own

    def column(self, system: str, domain: str, part: Part) -> Tensor:
        """Return log p ``(N,)`` of the base or of an expert."""
        folder = self.shared if system == BASE else self.own
        expert = None if system == BASE else self.experts[system]
        return cached_column(self.context, expert, folder / system, domain, part)

    def experts_of(self, domain: str, part: Part) -> Tensor:
        """Return log p_j ``(N, K)`` of the experts, in the domains' order."""
        columns = [self.column(d, domain, part) for d in self.context.domains]
        return torch.stack(columns, dim=1)


def cached_column(
    context: StudyContext, expert: redhost.Expert | None, folder: Path, domain: str, part: Part
) -> Tensor:
    """Return log p ``(N,)`` of one system on one part, from its file if it exists."""
    found, _ = cached_tensors(
        folder / f"{part}-{domain}.safetensors",
        lambda: {"log_p": answer_log_p(context, context.part(domain, part), expert)},
    )
    return found["log_p"]


def answer_log_p(
    context: StudyContext, tokens: PassageTokens, expert: redhost.Expert | None
) -> Tensor:
    """Return log p(x_t+1 | x_≤t) ``(N,)`` of one expert alone, or of the base."""
    log_p = []
    with torch.inference_mode():
        for piece in slices(len(tokens), cost=len(context.head)):
            logits = context.logits(tokens.h[piece], expert=expert)
            log_p.append(_chosen(logits, tokens.target[piece]))
    return torch.cat(log_p)


def residual_log_p(
    context: StudyContext, tokens: PassageTokens, alpha: Tensor, experts: Sequence[redhost.Expert]
) -> Tensor:
    """Return log p ``(N,)`` of softmax(W_c (h + Σ_j α_j Δ_j(z))), one head product per token.

    Args:
        context: The study's data, with the head.
        tokens: The rows.
        alpha: Weights ``(N, K)``.
        experts: The experts in the order of the weights.
    """
    log_p = []
    with torch.inference_mode():
        for piece in slices(len(tokens), cost=len(context.head)):
            h = tokens.h[piece]
            z = context.norm(h)
            added = sum(alpha[piece, j, None] * e(z) for j, e in enumerate(experts))
            log_p.append(_chosen((h + added) @ context.head.T, tokens.target[piece]))
    return torch.cat(log_p)


def totals(tokens: PassageTokens, log_p: Tensor) -> Tensor:
    """Return log p of whole passages ``(P, …)`` from that of tokens ``(N, …)``."""
    return torch.stack([rows.double().sum(0) for rows in tokens.by_passage(log_p)])


def _chosen(logits: Tensor, target: Tensor) -> Tensor:
    return logits.gather(1, target[:, None]).squeeze(1) - torch.logsumexp(logits, dim=1)
