"""The interface of all systems, their recipe, and the jointly trained ones.

    head     f(z) = V gelu(U z + u) + v               U (W, D), V (C, W)
    dense    log p = log softmax f(z)
    soft     log p = log Σ_i α_i softmax f_i(z)       α = softmax(G z + g), all E heads for a row
    sparse   the same over the k largest α_i, renormalised; noisy logits and a balance term in
             training (`redhost_mechanisms.SparseMixture`)

Heads have redhost's form `mlp`, initialised as in `train_expert`: V, u, v and the gate at zero. The
training loop does the same steps and random draws as `redhost_author.training.expert.train_expert`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import redhost_author
import torch
from redhost_mechanisms import Encapsulated, SparseMixture, load_balancing_loss
from torch import Tensor, nn

from red_lab.matched.data import DataPart
from red_lab.red.experts import Budget
from red_lab.training import descend_over
from redhost.core.bus.experts import LowRank

__all__ = [
    "ARITHMETIC",
    "TEXT",
    "Dense",
    "Recipe",
    "Soft",
    "Sparse",
    "System",
    "Tick",
    "descend",
    "matched_width",
    "products",
]


class System(nn.Module):
    """Maps h and z to log p, ``(B, C)``."""

    def log_p(self, h: Tensor, z: Tensor) -> Tensor:
        """Return log p(y|x) ``(B, C)`` for ``(B, D)`` twice."""
        raise NotImplementedError

    def alpha(self, z: Tensor) -> Tensor | None:
        """Return the experts' weights ``(B, E)``; None if there are no experts."""

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one row, in the parts that are run for it: here, in all."""
        return products(self)

    def loss(self, h: Tensor, z: Tensor, target: Tensor) -> Tensor:
        """Return the training loss: the mean −log p(y|x) of rows with labels ``(B,)``."""
        return nn.functional.nll_loss(self.log_p(h, z), target)


def products(module: nn.Module) -> int:
    """Return the number of matrix entries."""
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


def safe_log(p: Tensor) -> Tensor:
    """Return log p, finite where p is not a positive number of its type."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


Tick = Callable[[str], None]
"""Called with the name of the system in training, after each of its epochs."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training settings of all systems; the last epoch is used.

    Attributes:
        epochs: Passes over the rows; for an expert, over those of its domain.
        batch: Rows a step.
        learning_rate: AdamW's peak, decayed to zero along a cosine.
        weight_decay: AdamW's.
        dropout: Share of z's entries dropped while training.
    """

    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    dropout: float

    def settings(
        self, *, form: str, space: Literal["hidden", "labels"], rank: int, seed: int
    ) -> redhost_author.ExpertSettings:
        """Return the same settings for `train_expert`, without its background term."""
        return redhost_author.ExpertSettings(
            form=form,
            space=space,
            rank=rank,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            dropout=self.dropout,
            off_domain=0.0,
            seed=seed,
        )


ARITHMETIC = Recipe(
    epochs=Budget().epochs,
    batch=Budget().batch,
    learning_rate=Budget().learning_rate,
    weight_decay=Budget().weight_decay,
    dropout=0.0,
)
"""The settings with which `redhost lab red` trains every expert."""

TEXT = Recipe(
    epochs=redhost_author.ExpertSettings().epochs,
    batch=redhost_author.ExpertSettings().batch,
    learning_rate=redhost_author.ExpertSettings().learning_rate,
    weight_decay=redhost_author.ExpertSettings().weight_decay,
    dropout=redhost_author.ExpertSettings().dropout,
)
"""The settings of experts and union head in `redhost lab text`; `choice` selects the epochs."""


def descend(
    system: System, part: DataPart, *, recipe: Recipe, seed: int, tick: Callable[[], None]
) -> None:
    """Train a system on rows, in place."""
    generator = torch.Generator().manual_seed(seed)

    def loss(rows: Tensor) -> Tensor:
        z = _dropped(part.z[rows], recipe.dropout, generator)
        return system.loss(part.h[rows], z, part.target[rows])

    system.train()
    descend_over(system, len(part), loss, recipe=recipe, generator=generator, tick=tick)
    system.eval()


def _dropped(z: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return z with a share of its entries dropped and the others scaled up."""
    if not share:
        return z
    keep = torch.rand(z.shape, generator=generator) >= share
    return z * keep / (1 - share)


BALANCE = 0.01
"""c of the load balancing loss (Fedus et al. 2021, section 2.2)."""


class Dense(System):
    """One head of W units.

    Args:
        width: D.
        units: W.
        classes: C.
        seed: Of U.
    """

    def __init__(self, *, width: int, units: int, classes: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.head = _head(width=width, units=units, classes=classes, generator=generator)

    def log_p(self, h: Tensor, z: Tensor) -> Tensor:  # noqa: ARG002
        """Return log p(y|x) ``(B, C)``."""
        return torch.log_softmax(self.head(z), dim=-1)


class Soft(System):
    """E heads of W units under a linear gate, all used for every row.

    Args:
        width: D.
        units: W.
        classes: C.
        experts: E.
        seed: Of every U, drawn one after the other.
    """

    def __init__(self, *, width: int, units: int, classes: int, experts: int, seed: int) -> None:
        super().__init__()
        self.gate, heads = _parts(width, units, classes, experts, seed)
        self.heads = nn.ModuleList(heads)

    def log_p(self, h: Tensor, z: Tensor) -> Tensor:  # noqa: ARG002
        """Return log p(y|x) ``(B, C)``."""
        each = torch.stack([torch.log_softmax(f(z), dim=-1) for f in self.heads], dim=1)  # (B,E,C)
        return torch.logsumexp(torch.log_softmax(self.gate(z), dim=-1)[..., None] + each, dim=1)

    def alpha(self, z: Tensor) -> Tensor | None:
        """Return the gate's softmax ``(B, E)``."""
        return torch.softmax(self.gate(z), dim=-1)


class Sparse(System):
    """E heads of W units under a linear gate, k used for each row.

    Args:
        width: D.
        units: W.
        classes: C.
        experts: E.
        k: The number of heads used for a row.
        seed: Of every U, drawn one after the other, and of the noise.
    """

    def __init__(
        self, *, width: int, units: int, classes: int, experts: int, k: int, seed: int
    ) -> None:
        super().__init__()
        gate, heads = _parts(width, units, classes, experts, seed)
        self.mixture = SparseMixture(
            gate=gate,
            experts=[
                Encapsulated(
                    nn.Sequential(f, nn.Softmax(dim=-1)), input_width=width, output_width=classes
                )
                for f in heads
            ],
            k=k,
            noise=1 / experts,  # Riquelme et al. 2021, "Scaling vision with sparse mixture …", 2.1
            generator=torch.Generator().manual_seed(seed),
        )

    def log_p(self, h: Tensor, z: Tensor) -> Tensor:  # noqa: ARG002
        """Return log p(y|x) ``(B, C)``."""
        return safe_log(self.mixture(z))

    def alpha(self, z: Tensor) -> Tensor | None:
        """Return the weights ``(B, E)``, zero for the heads that a row does not use."""
        return self.mixture.route(z).dense_weights()

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one row: of the gate and of k heads."""
        gate = products(self.mixture.gate)
        return gate + self.mixture.k * products(self.mixture.experts[0])

    def loss(self, h: Tensor, z: Tensor, target: Tensor) -> Tensor:
        """Return the mean −log p(y|x), plus the balance term in training."""
        if not self.training:
            return super().loss(h, z, target)
        routing = self.mixture.route(z)
        p = self.mixture.combine(z, routing)
        balance = load_balancing_loss(routing.probabilities, routing.indices, coefficient=BALANCE)
        return nn.functional.nll_loss(safe_log(p), target) + balance


def matched_width(parameters: int, *, width: int, classes: int, experts: int = 1) -> int:
    """Return the W for which the heads, and a gate if there are several, have P parameters.

    P = E (W (D + C + 1) + C) + [E > 1] E (D + 1), solved for W and rounded.

    Args:
        parameters: P.
        width: D.
        classes: C.
        experts: E.
    """
    fixed = experts * classes + (experts * (width + 1) if experts > 1 else 0)
    return max(1, round((parameters - fixed) / (experts * (width + classes + 1))))


def _parts(
    width: int, units: int, classes: int, experts: int, seed: int
) -> tuple[nn.Linear, list[LowRank]]:
    """Return a gate with equal weights, and E different heads."""
    gate = nn.Linear(width, experts)
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)
    generator = torch.Generator().manual_seed(seed)
    heads = [
        _head(width=width, units=units, classes=classes, generator=generator)
        for _ in range(experts)
    ]
    return gate, heads


def _head(*, width: int, units: int, classes: int, generator: torch.Generator) -> LowRank:
    return LowRank(
        U=torch.randn(units, width, generator=generator) / width**0.5,
        V=torch.zeros(classes, units),
        u=torch.zeros(units),
        v=torch.zeros(classes),
        activation="gelu",
        space="labels",
    )
