"""Every system in bits per byte on test texts, domain by domain, and the domains' divergence.

log p(x_t+1 | x_≤t) of all tokens under every system alone is computed once. There is one file of it
for each system and part of a domain, so that an interrupted run resumes. The posterior over experts
of a passage is

    teacher   P(k|x) ∝ w_k π_k(x)           sees the whole passage
    exact     γ(k|x_<t) ∝ w_k π_k(x_<t)     the same law, causal: its mixture is Σ_k w_k π_k(x)

The Jensen–Shannon divergence of the domains is estimated with their experts, on passages of their
test texts as samples x ∼ p_k:

    JSD_λ = Σ_k λ_k E_{x∼p_k} [ log π_k(x) − log π_λ(x) ],    λ uniform

For whole passages it is at most H(λ) = log K, reached when every passage identifies its domain. For
one token it is the mean over tokens of the divergence of the experts' next-token distributions.
Source: seed 002, structural distillation; `redhost_robust.constant_causal_gate` is the same on a
finite alphabet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import redhost
from red_lab.generative.context import PassageTokens, StudyContext, slices
from red_lab.generative.corpora import Part
from red_lab.metrics import whole
from redhost.core.bus.experts import LowRank

__all__ = [
    "BASE",
    "GateRows",
    "Tables",
    "answer_log_p",
    "bayes_gate",
    "bits_of",
    "cached_expert",
    "cached_tensors",
    "divergences",
    "gate_rows_of",
    "judge_rarity",
    "judge_systems",
    "mixture_bits",
    "passage_divergence",
    "passage_posterior",
    "residual_log_p",
    "token_divergence",
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
        with whole(file) as part:
            safetensors.torch.save_file(tensors, part)
    return safetensors.torch.load_file(file)


def cached_expert(file: Path, make: Callable[[], redhost.Expert]) -> redhost.Expert:
    """Return a frozen low-rank expert, trained once."""
    tensors = cached_tensors(file, lambda: make().state_dict())
    expert = LowRank(U=tensors["U"], V=tensors["V"], activation="gelu", space="hidden")
    return expert.requires_grad_(False).eval()


def _chosen(logits: Tensor, target: Tensor) -> Tensor:
    return logits.gather(1, target[:, None]).squeeze(1) - torch.logsumexp(logits, dim=1)


RESIDUAL = ("balanced", "robust", "robust shares")
"""Routers also evaluated with the residual sum, which takes a head product for each token."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GateRows:
    """A router's inputs for a part of a domain.

    Attributes:
        x: [z | c] ``(N, 3·D)``.
        log_p: log p_j of the tokens ``(N, K)``.
        lengths: Tokens of each passage.
        scale: Bits per byte of a nat per token.
    """

    x: Tensor
    log_p: Tensor
    lengths: tuple[int, ...]
    scale: float

    def part(self, index: slice | Tensor) -> GateRows:
        """Return some rows; their division into passages is dropped."""
        x, log_p = self.x[index], self.log_p[index]
        return GateRows(x=x, log_p=log_p, lengths=(), scale=self.scale)

    def passages(self) -> tuple[Tensor, ...]:
        """Return log p_j ``(T, K)`` of each passage."""
        return torch.split(self.log_p, list(self.lengths))


def gate_rows_of(context: StudyContext, tables: Tables, domain: str, part: Part) -> GateRows:
    """Return a router's inputs for a part."""
    tokens = context.part(domain, part)
    return GateRows(
        x=context.router_input(tokens),
        log_p=tables.experts_of(domain, part),
        lengths=tokens.lengths,
        scale=tokens.scale,
    )


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
