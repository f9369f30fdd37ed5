"""A linear head for label sets over an expert's own labels: one logistic regression for each label.

    Δ_y(z) = w_yᵀ z + b_y
    w, b   = argmin Σ over rows and labels of −log p + λ/2 Σ_y |w_y|²      p = sigmoid(±Δ_y(z))

The sum is convex and is minimised by L-BFGS (Liu and Nocedal 1989). λ maximises the likelihood of
rows held out for this purpose; the head is then fitted to all rows with this λ. Texts of the
background card are rows without a label.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, linear

from redhost.core.bus.experts import Linear
from redhost.core.bus.label_set_head import SigmoidHead

from .expert import TrainedExpert

PENALTIES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0)
"""Candidates for λ, from large to small; each fit is initialised with the one before."""

ASIDE = 5
"""The first 1/ASIDE of the rows selects λ; the rows are consecutive, so words of a text stay
together."""

STEPS, TOLERANCE = 100, 1e-5
"""Most steps of L-BFGS, and the gradient of the mean at which it stops."""


def solve_label_heads(
    z: Tensor, answers: Sequence[str], labels: Sequence[str], *, others: Tensor
) -> TrainedExpert:
    """Fit a linear head for sets of labels.

    Args:
        z: The head's input for each row, ``(N, D)``.
        answers: N sets of labels.
        labels: The labels it may predict, in the order of its logits.
        others: The head's input for texts without any of them, ``(M, D)``.
    """
    target = SigmoidHead().targets(answers, labels)
    rows = [(z, target), (others, target.new_zeros(len(others), len(labels)))]
    cuts = [min(len(x), max(1, len(x) // ASIDE)) for x, _ in rows]
    held_out = _concat([(x[:cut], y[:cut]) for cut, (x, y) in zip(cuts, rows, strict=True)])
    learnt = _concat([(x[cut:], y[cut:]) for cut, (x, y) in zip(cuts, rows, strict=True)])
    head, tried = _start(*learnt), list[tuple[float, float]]()
    for penalty in PENALTIES:
        head = _fit(head, *learnt, penalty=penalty)
        tried.append((_loss(head, *held_out), penalty))
    loss, penalty = min(tried)
    weight, bias = _fit(head, *_concat(rows), penalty=penalty)
    expert = Linear(W=weight, b=bias, space="labels", labels=tuple(labels))
    return TrainedExpert(expert=expert.requires_grad_(False).eval(), epoch=0, loss=loss)


def _concat(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]).float()


def _start(z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return w = 0 ``(L, D)``, and b ``(L,)``: the log odds of each label over all rows."""
    rows = target.sum(0)
    return z.new_zeros(target.shape[1], z.shape[1]), ((rows + 1) / (len(z) - rows + 1)).log()


def _fit(
    head: tuple[Tensor, Tensor], z: Tensor, target: Tensor, *, penalty: float
) -> tuple[Tensor, Tensor]:
    """Return w ``(L, D)`` and b ``(L,)`` for rows ``(N, D)``, initialised with a given head."""
    weight, bias = (t.clone().requires_grad_() for t in head)
    # Importing LBFGS also imports torch's compiler, about a second; plain descent takes longer.
    search = torch.optim.LBFGS(
        [weight, bias],
        max_iter=STEPS,
        tolerance_grad=TOLERANCE,
        line_search_fn="strong_wolfe",
    )

    def mean() -> Tensor:
        search.zero_grad()
        loss = binary_cross_entropy_with_logits(linear(z, weight, bias), target, reduction="sum")
        total: Tensor = (loss + penalty / 2 * weight.square().sum()) / len(z)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad():
        search.step(mean)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def _loss(head: tuple[Tensor, Tensor], z: Tensor, target: Tensor) -> float:
    """Return the mean over rows of −Σ_y log p, in nats."""
    logits = linear(z, *head)
    return float(binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1).mean())
