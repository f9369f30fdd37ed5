"""Every system in bits per byte on test texts, domain by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.generative.study.bench import Bench, Tokens
from red_lab.generative.study.gates import Heard
from red_lab.generative.study.posterior import bayes_gate, shift_from_teacher
from red_lab.generative.study.tables import BASE, Tables, residual_log_p

__all__ = ["ROUTERS", "bits_of", "judge_rarity", "judge_systems", "mixture_bits", "sums"]

ROUTERS = ("average", "balanced", "robust", "distilled", "statistics")
RESIDUAL = ("balanced", "robust")
"""Routers that are also judged with the residual sum, which takes a head product for each token."""
CHECKED = 64
"""Rows of every domain whose mixture is summed over the vocabulary."""


def bits_of(log_p: Tensor, scale: float) -> float:
    """Return bits per byte of tokens' log p ``(N,)``."""
    return -float(log_p.double().mean()) * scale


def mixture_bits(log_gate: Tensor, heard: Heard) -> float:
    """Return bits per byte of Σ_j γ_j p_j for log γ ``(N, K)``."""
    return bits_of(torch.logsumexp(log_gate + heard.log_p, dim=1), heard.scale)


def judge_systems(
    bench: Bench,
    tables: Tables,
    gates: Mapping[str, redhost.Router],
    experts: Mapping[str, redhost.Expert],
) -> dict[str, Any]:
    """Judge the base, the experts, and every router.

    Returns:
        `bits`: system → by domain; `sums`: system → largest |Σ p − 1|; `distilled`: how far the
        student is from its teacher.
    """
    bits: dict[str, list[float]] = {}
    largest: dict[str, float] = {}
    shift = [0.0, 0.0]
    count = len(bench.domains)
    even = torch.full((count,), 1 / count)
    for domain in bench.domains:
        part = bench.part(domain, "test")
        log_p = tables.experts_of(domain, "test")
        heard = Heard(x=bench.hear(part), log_p=log_p, lengths=part.lengths, scale=part.scale)
        found = _alone(tables, heard, domain)
        weights = _weights(gates, heard, even)
        found |= {name: mixture_bits(g, heard) for name, g in weights.items()}
        found |= {
            f"{name}, residual": bits_of(
                residual_log_p(bench, part, weights[name].exp(), list(experts.values())),
                part.scale,
            )
            for name in RESIDUAL
        }
        for name, value in found.items():
            bits.setdefault(name, []).append(value)
        for name, log_gate in weights.items():
            gap = sums(bench, part, log_gate, list(experts.values()))
            largest[name] = max(largest.get(name, 0.0), gap)
        told = shift_from_teacher(heard.passages(log_p), heard.passages(weights["distilled"]), even)
        shift = [s + t / count for s, t in zip(shift, told, strict=True)]
    return {
        "bits": bits,
        "sums": largest,
        "distilled": {"passage_nats": shift[0], "token_nats": shift[1]},
    }


def judge_rarity(
    bench: Bench, tables: Tables, gates: Mapping[str, redhost.Router]
) -> dict[str, list[float]]:
    """Return bits per byte by domain of the mixtures of some routers."""
    bits: dict[str, list[float]] = {name: [] for name in gates}
    for domain in bench.domains:
        part = bench.part(domain, "test")
        heard = Heard(
            x=bench.hear(part),
            log_p=tables.experts_of(domain, "test"),
            lengths=part.lengths,
            scale=part.scale,
        )
        for name, gate in gates.items():
            bits[name].append(mixture_bits(_logs(gate, heard.x), heard))
    return bits


def sums(
    bench: Bench, tokens: Tokens, log_gate: Tensor, experts: Sequence[redhost.Expert]
) -> float:
    """Return the largest |Σ_v Σ_j γ_j p_j(v) − 1| over some real rows."""
    every = max(1, len(tokens) // CHECKED)
    h, weights = tokens.h[::every], log_gate[::every].exp()
    with torch.inference_mode():
        mixed = torch.zeros(len(h), len(bench.head))
        for j, expert in enumerate(experts):
            mixed += weights[:, j, None] * torch.softmax(bench.logits(h, expert=expert), dim=1)
    return float((mixed.sum(1) - 1).abs().max())


def _alone(tables: Tables, heard: Heard, domain: str) -> dict[str, float]:
    """Judge the base, every expert alone, and the domain's own."""
    domains = tables.bench.domains
    base = tables.column(BASE, domain, "test")
    found = {BASE: bits_of(base, heard.scale)}
    for k, name in enumerate(domains):
        found[f"expert {name}"] = bits_of(heard.log_p[:, k], heard.scale)
    found["oracle"] = found[f"expert {domain}"]
    return found


def _weights(gates: Mapping[str, redhost.Router], heard: Heard, even: Tensor) -> dict[str, Tensor]:
    """Return log γ ``(N, K)`` of every router."""
    return {
        "uniform": even.log().expand(len(heard.x), -1),
        **{name: _logs(gate, heard.x) for name, gate in gates.items()},
        "bayes": torch.cat(bayes_gate(heard.passages(heard.log_p), even)),
    }


def _logs(gate: redhost.Router, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.log_softmax(gate(x), dim=1)
