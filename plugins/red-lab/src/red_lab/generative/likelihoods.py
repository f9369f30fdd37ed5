"""Log-likelihoods of all tokens under every system alone, computed once, and posteriors of them.

There is one file of log p(x_t+1 | x_≤t) for each system and part of a domain, so that an
interrupted run resumes. The posterior over experts of a passage is

    teacher   P(k|x) ∝ w_k π_k(x)           sees the whole passage
    exact     γ(k|x_<t) ∝ w_k π_k(x_<t)     the same law, causal: its mixture is Σ_k w_k π_k(x)

Passages of a domain's test texts are used as samples x ∼ π_k. Source: seed 002, structural
distillation; `redhost_robust.constant_causal_gate` is the same on a finite alphabet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

import redhost
from red_lab.generative.context import PassageTokens, StudyContext, slices
from red_lab.generative.corpora import Part
from redhost.core.bus.experts import LowRank

__all__ = [
    "BASE",
    "Tables",
    "answer_log_p",
    "bayes_gate",
    "cached_expert",
    "cached_tensors",
    "passage_posterior",
    "residual_log_p",
]

BASE = "base"


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
        """Return log p ``(N,)`` of the base or of an expert, from its file if it exists."""
        folder = (self.shared if system == BASE else self.own) / system
        expert = None if system == BASE else self.experts[system]
        return cached_tensors(
            folder / f"{part}-{domain}.safetensors",
            lambda: {"log_p": answer_log_p(self.context, self.context.part(domain, part), expert)},
        )["log_p"]

    def experts_of(self, domain: str, part: Part) -> Tensor:
        """Return log p_j ``(N, K)`` of the experts, in the domains' order."""
        columns = [self.column(d, domain, part) for d in self.context.domains]
        return torch.stack(columns, dim=1)


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


def passage_posterior(log_p: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """Return log P(k|x), the same for every token of its passage, ``(T, K)`` each.

    Args:
        log_p: log π_k(x_t|x_<t) of each passage's tokens, ``(T, K)``.
        weights: w ``(K,)``.
    """
    posteriors = []
    for rows in log_p:
        whole = torch.log_softmax(rows.double().sum(0) + weights.double().log(), dim=0)
        posteriors.append(whole.to(rows.dtype).expand(len(rows), -1))
    return posteriors


def bayes_gate(log_p: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """Return log γ(k|x_<t) ``(T, K)`` for each passage: row t depends on the tokens before t.

    Args:
        log_p: log π_k(x_t|x_<t) of each passage's tokens, ``(T, K)``.
        weights: w ``(K,)``, the prior.
    """
    log_gates = []
    for rows in log_p:
        wide = rows.double()
        before = wide.cumsum(0) - wide
        log_gates.append(torch.log_softmax(before + weights.double().log(), dim=1).to(rows.dtype))
    return log_gates


def cached_tensors(file: Path, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the contents of a file; compute and save them if it does not exist."""
    if not file.exists():
        tensors = {name: t.detach().contiguous() for name, t in make().items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        safetensors.torch.save_file(tensors, part)
        part.replace(file)
    return safetensors.torch.load_file(file)


def cached_expert(file: Path, make: Callable[[], redhost.Expert]) -> redhost.Expert:
    """Return a frozen low-rank expert, trained once."""
    tensors = cached_tensors(file, lambda: make().state_dict())
    expert = LowRank(U=tensors["U"], V=tensors["V"], activation="gelu", space="hidden")
    return expert.requires_grad_(False).eval()


def _chosen(logits: Tensor, target: Tensor) -> Tensor:
    return logits.gather(1, target[:, None]).squeeze(1) - torch.logsumexp(logits, dim=1)
