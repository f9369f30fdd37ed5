"""Stage 3: the router of the seed (4.5.3), a two-layer MLP of 256 over z, for every gated system.

It is trained on range labels, or end to end through the experts that it weights. Stage 4 is an
ablation in which experts and router are trained jointly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from red_lab.red.base import FrozenBase
from red_lab.red.experts import NAMES, Family, Outputs, normed
from red_lab.red.queries import LABELS, Query
from red_lab.training import descend_over

__all__ = [
    "Gate",
    "GateSettings",
    "centroid",
    "oracle",
    "shaken",
    "train_end_to_end",
    "train_jointly",
    "train_supervised",
]

Combine = Callable[[Outputs, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """Training settings of the router, the same for every gated system.

    Attributes:
        hidden: Units.
        epochs: Passes over the distinct questions.
        batch: Rows a step.
        learning_rate: AdamW's peak, decayed along a cosine.
        weight_decay: AdamW's.
        poisson: Activity-scaled noise: standard deviation √(poisson · |z|).
        seed: Random seed of weights, order and noise.
    """

    hidden: int = 256
    epochs: int = 60
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    poisson: float = 0.0
    seed: int = 0


class Gate(nn.Module):
    """α = softmax(B gelu(A z + a) + b)."""

    def __init__(self, *, width: int, settings: GateSettings) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.layers = nn.Sequential(
                nn.Linear(width, settings.hidden), nn.GELU(), nn.Linear(settings.hidden, len(NAMES))
            )

    def forward(self, z: Tensor) -> Tensor:
        """Return logits ``(B, E)`` for z ``(B, D)``."""
        out: Tensor = self.layers(z)
        return out

    def weights(self, h: Tensor) -> Tensor:
        """Return α ``(B, E)`` for features ``(B, D)``."""
        with torch.inference_mode():
            return torch.softmax(self(normed(h)), dim=-1)


def oracle(queries: Sequence[Query]) -> Tensor:
    """Return one-hot α by the true range; this uses log2(5) bits of label information."""
    owner = torch.tensor([NAMES.index(q.domain) for q in queries])
    return nn.functional.one_hot(owner, len(NAMES)).float()


def centroid(base: FrozenBase, train: Sequence[Query], h: Tensor) -> Tensor:
    """Return one-hot α of the nearest mean of z over each range's training questions."""
    means = []
    for name in NAMES:
        rows = sorted({base.place[q.text] for q in train if q.domain == name})
        means.append(normed(base.h[torch.tensor(rows)]).mean(0))
    nearest = torch.cdist(normed(h), torch.stack(means)).argmin(-1)
    return nn.functional.one_hot(nearest, len(NAMES)).float()


def train_supervised(base: FrozenBase, train: Sequence[Query], *, settings: GateSettings) -> Gate:
    """Train the router on range labels."""
    rows, owner, _ = _distinct(base, train)
    z = normed(base.h[rows])
    gate = Gate(width=z.shape[1], settings=settings)

    def loss(index: Tensor, noisy: Tensor) -> Tensor:
        return nn.functional.cross_entropy(gate(noisy), owner[index])

    _descend(gate, z, loss, settings)
    return gate


def train_end_to_end(
    base: FrozenBase,
    train: Sequence[Query],
    family: Family,
    combine: Combine,
    *,
    settings: GateSettings,
) -> Gate:
    """Train the router through frozen experts on −log of the answer's probability."""
    rows, _, target = _distinct(base, train)
    h = base.h[rows]
    z, frozen = normed(h), family.outputs(h, base.classifier)
    base_logits, add = frozen.base.clone(), frozen.add.clone()
    gate = Gate(width=z.shape[1], settings=settings)

    def loss(index: Tensor, noisy: Tensor) -> Tensor:
        outputs = Outputs(base=base_logits[index], add=add[index])
        p = combine(outputs, torch.softmax(gate(noisy), dim=-1))
        return -p.gather(1, target[index, None]).clamp_min(1e-9).log().mean()

    _descend(gate, z, loss, settings)
    return gate


def train_jointly(
    base: FrozenBase, train: Sequence[Query], family: Family, gate: Gate, *, settings: GateSettings
) -> tuple[Family, Gate]:
    """Train residual experts and router jointly, starting from their trained state (stage 4)."""
    rows, _, target = _distinct(base, train)
    h = base.h[rows]
    z = normed(h)
    gate = copy.deepcopy(gate)
    copies = tuple(copy.deepcopy(e).requires_grad_(True) for e in family.experts)
    both = nn.ModuleList([gate.requires_grad_(True), *copies])

    def loss(index: Tensor, noisy: Tensor) -> Tensor:
        alpha = torch.softmax(gate(noisy), dim=-1)
        delta = torch.stack([e(noisy) for e in copies], dim=1)
        mixed = h[index] + torch.einsum("ne,ned->nd", alpha, delta)
        return nn.functional.cross_entropy(mixed @ base.classifier.T, target[index])

    _descend(both, z, loss, settings)
    trained = tuple(e.requires_grad_(False) for e in copies)
    moved = Family(
        form=family.form, experts=trained, parameters=family.parameters, seconds=family.seconds
    )
    return moved, gate


def shaken(z: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Return z with noise of variance p |z|, like a Poisson count, whose variance is its mean."""
    if not noise:
        return z
    return z + (noise * z.abs()).sqrt() * torch.randn(z.shape, generator=generator)


def _descend(
    module: nn.Module,
    z: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    settings: GateSettings,
) -> None:
    """Train a module in place on rows z ``(N, D)`` with noise; it is frozen afterwards."""
    generator = torch.Generator().manual_seed(settings.seed)

    def noisy_loss(index: Tensor) -> Tensor:
        return loss(index, shaken(z[index], settings.poisson, generator))

    descend_over(module, len(z), noisy_loss, recipe=settings, generator=generator)
    module.requires_grad_(False)


def _distinct(base: FrozenBase, train: Sequence[Query]) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, ranges and targets of the distinct questions."""
    known = {q.text: q for q in train}
    rows = torch.tensor([base.place[t] for t in known])
    owner = torch.tensor([NAMES.index(q.domain) for q in known.values()])
    target = torch.tensor([LABELS.index(q.label) for q in known.values()])
    return rows, owner, target
