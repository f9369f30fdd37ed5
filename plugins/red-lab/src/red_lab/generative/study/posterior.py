"""The posterior over experts of a passage: given all of it, and given every prefix.

    teacher   P(k|x) ∝ w_k π_k(x)           sees the whole passage
    exact     γ(k|x_<t) ∝ w_k π_k(x_<t)     the same law, causal: its mixture is Σ_k w_k π_k(x)

Passages of a domain's test texts are used as samples x ∼ π_k. Source: seed 002, structural
distillation; `redhost_robust.constant_causal_gate` is the same on a finite alphabet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["bayes_gate", "passage_posterior", "shift_from_teacher"]


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


def shift_from_teacher(
    log_p: Sequence[Tensor], log_gate: Sequence[Tensor], weights: Tensor
) -> tuple[float, float]:
    """Return the distance of a causal gate from the teacher, over some passages.

    Returns:
        The mean of log π_w(x) − log π_γ(x), nats per passage, which estimates KL(π_w ‖ π_γ); and
        the mean over tokens of KL(P(·|x) ‖ γ(·|x_<t)), nats per token.
    """
    models, gates, count = 0.0, 0.0, 0
    for rows, gate, teacher in zip(log_p, log_gate, passage_posterior(log_p, weights), strict=True):
        wide = rows.double()
        whole = torch.logsumexp(wide.sum(0) + weights.double().log(), dim=0)
        student = torch.logsumexp(wide + gate.double(), dim=1).sum()
        models += float(whole - student)
        gates += float((teacher.double().exp() * (teacher.double() - gate.double())).sum())
        count += len(rows)
    return models / len(log_p), gates / count
