"""Every system in bits per byte on test texts, domain by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from redhost_generate.vocabulary_head import VocabularyHead
from torch import Tensor

import redhost
from red_lab.generative.study.context import PassageTokens, StudyContext
from red_lab.generative.study.gates import GateRows, gate_rows_of
from red_lab.generative.study.posterior import bayes_gate, shift_from_teacher
from red_lab.generative.study.tables import BASE, Tables, residual_log_p

__all__ = ["bits_of", "judge_rarity", "judge_systems", "mixture_bits", "sums"]

RESIDUAL = ("balanced", "robust", "robust shares")
"""Routers also evaluated with the residual sum, which takes a head product for each token."""
CHECKED = 64
"""Rows of every domain whose mixture is summed over the vocabulary."""


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
) -> dict[str, Any]:
    """Evaluate the base, the experts, and every router.

    Returns:
        `bits`: system → by domain; `sums`: system → largest |Σ p − 1|; `distilled`: the student's
        distance from its teacher.
    """
    results = [_judge(context, tables, gates, experts, d) for d in context.domains]
    return {
        "bits": {name: [t.bits[name] for t in results] for name in results[0].bits},
        "sums": {name: max(t.sums[name] for t in results) for name in results[0].sums},
        "distilled": {
            "passage_nats": sum(t.shift[0] for t in results) / len(results),
            "token_nats": sum(t.shift[1] for t in results) / len(results),
        },
    }


@dataclass(frozen=True)
class _DomainResult:
    """The measurements on one domain."""

    bits: dict[str, float]
    sums: dict[str, float]
    shift: tuple[float, float]


def _judge(
    context: StudyContext,
    tables: Tables,
    gates: Mapping[str, redhost.Router],
    experts: Mapping[str, redhost.Expert],
    domain: str,
) -> _DomainResult:
    part, rows = context.part(domain, "test"), gate_rows_of(context, tables, domain, "test")
    even, modules = torch.full((len(experts),), 1 / len(experts)), list(experts.values())
    weights = _weights(gates, rows, even)
    residual = {
        f"{name}, residual": residual_log_p(context, part, weights[name].exp(), modules)
        for name in RESIDUAL
    }
    return _DomainResult(
        bits=_alone(tables, rows, domain)
        | {name: mixture_bits(log_gate, rows) for name, log_gate in weights.items()}
        | {name: bits_of(log_p, part.scale) for name, log_p in residual.items()},
        sums={name: sums(context, part, g, modules) for name, g in weights.items()},
        shift=shift_from_teacher(
            rows.passages(rows.log_p), rows.passages(weights["distilled"]), even
        ),
    )


def judge_rarity(
    context: StudyContext, tables: Tables, gates: Mapping[str, redhost.Router]
) -> dict[str, list[float]]:
    """Return bits per byte by domain of the mixtures of some routers."""
    bits: dict[str, list[float]] = {name: [] for name in gates}
    for domain in context.domains:
        rows = gate_rows_of(context, tables, domain, "test")
        for name, gate in gates.items():
            bits[name].append(mixture_bits(_logs(gate, rows.x), rows))
    return bits


def sums(
    context: StudyContext,
    tokens: PassageTokens,
    log_gate: Tensor,
    experts: Sequence[redhost.Expert],
) -> float:
    """Return the largest |Σ_v Σ_j γ_j p_j(v) − 1| over some real rows."""
    every = max(1, len(tokens) // CHECKED)
    h, weights = tokens.h[::every], log_gate[::every].exp()
    output = VocabularyHead().output
    with torch.inference_mode():
        mixed = torch.zeros(len(h), len(context.head))
        for j, expert in enumerate(experts):
            mixed += weights[:, j, None] * output(context.logits(h, expert=expert))
    return float((mixed.double().sum(1) - 1).abs().max())


def _alone(tables: Tables, rows: GateRows, domain: str) -> dict[str, float]:
    """Evaluate the base, every expert alone, and the domain's own."""
    domains = tables.context.domains
    base = tables.column(BASE, domain, "test")
    found = {BASE: bits_of(base, rows.scale)}
    for k, name in enumerate(domains):
        found[f"expert {name}"] = bits_of(rows.log_p[:, k], rows.scale)
    found["oracle"] = found[f"expert {domain}"]
    return found


def _weights(
    gates: Mapping[str, redhost.Router], rows: GateRows, even: Tensor
) -> dict[str, Tensor]:
    """Return log γ ``(N, K)`` of every router."""
    return {
        "uniform": even.log().expand(len(rows.x), -1),
        **{name: _logs(gate, rows.x) for name, gate in gates.items()},
        "bayes": torch.cat(bayes_gate(rows.passages(rows.log_p), even)),
    }


def _logs(gate: redhost.Router, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.log_softmax(gate(x), dim=1)
