"""Distil a trained gate into a smaller one, with the teacher's posterior over experts as target.

    r_j(z, y) = g_j(z) p_j(y|x) / Σ_i g_i(z) p_i(y|x)
    loss      = −Σ_k λ_k mean over rows of domain k of Σ_j r_j log γ_j(z)

The teacher's posterior r uses the row's answer y; the student γ takes z alone as input (seed 002,
structural distillation, with z for the prefix). Distillation voids the minimax guarantee: run
`minimax` on the student afterwards, and measure its worst regret before and after.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["distil_gate"]

Rows = Sequence[tuple[Tensor, Tensor]]
EVERY = 10
"""Steps between two evaluations on the held-out rows."""


def distil_gate(
    student: nn.Module,
    *,
    teacher: nn.Module,
    rows: Rows,
    aside: Rows,
    weights: Tensor,
    steps: int = 400,
    learning_rate: float = 5e-3,
) -> float:
    """Train a student gate in place, keeping the weights that are best on held-out rows.

    Args:
        student: z ``(B, D)`` → logits ``(B, K)``; training starts from its current weights.
        teacher: A gate of the same shapes; it is not changed.
        rows: By domain: z ``(N, D)``, and log p_j(y|x) of the rows' answers ``(N, K)``.
        aside: The same for held-out rows, which are not trained on.
        weights: λ ``(K,)``, the weight of each domain in the loss.
        steps: Full-batch AdamW steps; the learning rate decays to zero along a cosine.
        learning_rate: AdamW's peak learning rate.

    Returns:
        The smallest loss on the held-out rows, in nats.
    """
    learnt, held_out = (_targets(student, teacher, r, weights) for r in (rows, aside))
    optimizer = torch.optim.AdamW(student.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    best, best_loss = copy.deepcopy(student.state_dict()), _quietly(held_out)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        learnt().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % EVERY == 0 and (found := _quietly(held_out)) < best_loss:
            best, best_loss = copy.deepcopy(student.state_dict()), found
    student.load_state_dict(best)
    return best_loss


def _targets(
    student: nn.Module, teacher: nn.Module, rows: Rows, weights: Tensor
) -> Callable[[], Tensor]:
    """Return a function → the student's loss on rows; the teacher's posterior is computed once."""
    z = torch.cat([z for z, _ in rows])
    share = torch.cat(
        [torch.full((len(z),), float(w) / len(z)) for w, (z, _) in zip(weights, rows, strict=True)]
    )
    with torch.no_grad():
        log_p = torch.cat([log_p for _, log_p in rows])
        posterior = torch.softmax(torch.log_softmax(teacher(z), dim=-1) + log_p, dim=-1)

    def loss() -> Tensor:
        log_gate = torch.log_softmax(student(z), dim=-1)
        return -(share * (posterior * log_gate).sum(-1)).sum()

    return loss


def _quietly(loss: Callable[[], Tensor]) -> float:
    with torch.no_grad():
        return float(loss())
