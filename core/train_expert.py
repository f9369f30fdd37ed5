"""Train one expert alone: its own column at 1, through the frozen classifier.

    loss = CE(softmax(W_c (h + Δ(z))), y) + λ · mean over background of ‖W_c Δ(z)‖²

The second term teaches the expert to leave other people's inputs alone, which makes
Proposition 3's small residuals (seed 000) true off the expert's domain by training, and routing
errors cheap.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..registry.errors import UsageError
from .experts import Expert, Linear, LowRank, Space

__all__ = ["ExpertSettings", "expert_logits", "init_expert", "off_domain", "train_expert"]


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """How an expert is made and trained.

    Attributes:
        form: ``residual``, ``mlp`` or ``linear``.
        space: Where it writes.
        rank: R of the low-rank forms; by default a quarter of D (seed 001, section 4.5.4).
        activation: σ.
        epochs: Passes over the rows.
        batch: Rows a step.
        learning_rate: Peak of AdamW, decayed to zero along a cosine.
        weight_decay: AdamW's.
        dropout: Share of z's entries dropped while training.
        noise: Standard deviation of Gaussian noise added to z while training.
        off_domain: λ, the weight of the background term.
        seed: Initial weights, order of rows, dropout and noise.
    """

    form: str = "residual"
    space: Space = "hidden"
    rank: int | None = None
    activation: str = "gelu"
    epochs: int = 200
    batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    dropout: float = 0.0
    noise: float = 0.0
    off_domain: float = 1.0
    seed: int = 0


def init_expert(settings: ExpertSettings, *, width: int, out: int, labels: Sequence[str]) -> Expert:
    """Return an untrained expert: V (or W) starts at zero, so it changes nothing.

    Args:
        settings: Form, space, rank, activation and seed.
        width: D.
        out: Width of what it writes: D, C or its own number of labels.
        labels: The labels it may answer.

    Raises:
        UsageError: If the form is not one that can be trained here.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    space, rank = settings.space, settings.rank or max(1, width // 4)
    if settings.form == "linear":
        zeros = torch.zeros(out, width)
        return Linear(W=zeros, b=torch.zeros(out), space=space, labels=labels)
    if settings.form not in {"residual", "mlp"}:
        raise UsageError(
            f"form {settings.form!r} cannot be trained", expected="residual, mlp or linear"
        )
    biased = settings.form == "mlp"
    return LowRank(
        U=torch.randn(rank, width, generator=generator) / width**0.5,
        V=torch.zeros(out, rank),
        u=torch.zeros(rank) if biased else None,
        v=torch.zeros(out) if biased else None,
        activation=settings.activation,
        space=space,
        labels=labels,
    )


def expert_logits(expert: Expert, h: Tensor, z: Tensor, classifier: Tensor) -> Tensor:
    """Return the logits of one expert at column weight 1, ``(B, C)``."""
    delta: Tensor = expert(z)
    if expert.space == "hidden":
        return (h + delta) @ classifier.T
    return h @ classifier.T + delta


def off_domain(expert: Expert, z: Tensor, classifier: Tensor) -> Tensor:
    """Return mean ‖W_c Δ(z)‖² over rows ``(B, D)``, what the expert does to others' logits."""
    delta: Tensor = expert(z)
    logits = delta @ classifier.T if expert.space == "hidden" else delta
    return logits.square().sum(-1).mean()


def train_expert(
    h: Tensor,
    answers: Sequence[str],
    *,
    norm: Callable[[Tensor], Tensor],
    classifier: Tensor,
    labels: Sequence[str],
    domain_labels: Sequence[str],
    settings: ExpertSettings,
    background: Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Expert:
    """Train an expert that shares the backbone's classifier.

    Args:
        h: Features of the domain's rows, ``(N, D)``.
        answers: Their labels.
        norm: The bus norm, h → z.
        classifier: W_c ``(C, D)``, frozen.
        labels: The classifier's labels.
        domain_labels: The labels the expert may answer.
        settings: How.
        background: Features to leave alone, ``(M, D)``.
        progress: Called with (epochs done, epochs in all).

    Returns:
        The trained expert, frozen.

    Raises:
        UsageError: If an answer is not a label of the classifier.
    """
    targets = _targets(answers, labels)
    out = classifier.shape[1] if settings.space == "hidden" else len(labels)
    expert = init_expert(settings, width=h.shape[1], out=out, labels=domain_labels)
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(
        expert.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    steps = settings.epochs * -(-len(h) // settings.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(steps, 1))
    z, others = norm(h), None if background is None else norm(background)
    for epoch in range(1, settings.epochs + 1):
        order = torch.randperm(len(h), generator=generator)
        for rows in torch.split(order, settings.batch):
            logits = expert_logits(
                expert, h[rows], _disturb(z[rows], settings, generator), classifier
            )
            loss = nn.functional.cross_entropy(logits, targets[rows])
            if others is not None and len(others) and settings.off_domain > 0:
                loss = loss + settings.off_domain * off_domain(expert, others, classifier)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        if progress is not None:
            progress(epoch, settings.epochs)
    return copy.deepcopy(expert).requires_grad_(False).eval()


def _targets(answers: Sequence[str], labels: Sequence[str]) -> Tensor:
    place = {label: n for n, label in enumerate(labels)}
    strange = sorted(set(answers) - place.keys())
    if strange:
        raise UsageError(
            "the backbone cannot answer every label of the data",
            expected="labels of its classifier",
            found=", ".join(strange[:5]),
            hint="Let the expert write labels of its own (--writes labels).",
        )
    return torch.tensor([place[a] for a in answers])


def _disturb(z: Tensor, settings: ExpertSettings, generator: torch.Generator) -> Tensor:
    """Drop and shake entries of z, seeded."""
    if settings.dropout > 0:
        keep = torch.rand(z.shape, generator=generator) >= settings.dropout
        z = z * keep / (1 - settings.dropout)
    if settings.noise > 0:
        z = z + settings.noise * torch.randn(z.shape, generator=generator)
    return z
