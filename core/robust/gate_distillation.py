"""Distil a trained gate into a smaller one, by the teacher's posterior over experts.

    r_j(z, y) = g_j(z) p_j(y|x) / Σ_i g_i(z) p_i(y|x)
    loss      = −Σ_k λ_k mean over rows of domain k of Σ_j r_j log γ_j(z)

The teacher judges each row knowing its answer; the student γ sees z alone (seed 002, structural
distillation, with z for the prefix). Distillation voids the minimax guarantee: play the game on
the student afterwards (`minimax`), and measure its worst regret before and after.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["distil_gate"]


def distil_gate(
    student: nn.Module,
    *,
    teacher: nn.Module,
    rows: Sequence[tuple[Tensor, Tensor]],
    weights: Tensor,
    steps: int = 400,
    learning_rate: float = 5e-3,
) -> float:
    """Train a student gate in place; return its last loss, in nats.

    Args:
        student: z ``(B, D)`` → logits ``(B, K)``; its weights are where it begins.
        teacher: The same shapes; left as it is.
        rows: By domain: z ``(N, D)``, and log p_j(y|x) of the rows' answers ``(N, K)``.
        weights: λ ``(K,)``, what each domain counts.
        steps: Of AdamW over all rows at once, its rate decayed to zero along a cosine.
        learning_rate: AdamW's peak.
    """
    z = torch.cat([z for z, _ in rows])
    share = torch.cat(
        [torch.full((len(z),), float(w) / len(z)) for w, (z, _) in zip(weights, rows, strict=True)]
    )
    with torch.no_grad():
        log_p = torch.cat([log_p for _, log_p in rows])
        posterior = torch.softmax(torch.log_softmax(teacher(z), dim=-1) + log_p, dim=-1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    loss = posterior.new_zeros(())
    for _ in range(steps):
        log_gate = torch.log_softmax(student(z), dim=-1)
        loss = -(share * (posterior * log_gate).sum(-1)).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return float(loss.detach())
