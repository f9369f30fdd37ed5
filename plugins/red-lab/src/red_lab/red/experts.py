"""Stage 2: five experts, each trained alone on the questions of its range, in several forms.

    linear     p_i = softmax(W_i z + b_i)                         seed 4.5.2, the seed's MoE row
    mlp        p_i = softmax(V_i σ(U_i z + u_i) + v_i)            as many parameters as `residual`
    residual   p_i = softmax(W_c (h + V_i σ(U_i z)))              seed 4.5.4
    logits     p_i = softmax(W_c h + V_i σ(U_i z))                seed 4.4.1, V_i: r → C

All through `redhost_author.training.expert.train_expert`, with one budget for every form.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redhost_author
import torch
from redhost_author.training.expert import ExpertRows, train_expert
from torch import Tensor

import redhost
from red_lab.arithmetic import RANGES, hashed
from red_lab.red.base import FrozenBase
from red_lab.red.queries import LABELS, Query
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import Space

__all__ = [
    "FORMS",
    "NAMES",
    "Budget",
    "Family",
    "Outputs",
    "normed",
    "train_family",
    "train_monolith",
]

NAMES = tuple(name for name, _, _ in RANGES)
FORMS: Mapping[str, tuple[str, Space]] = {
    "linear": ("linear", "labels"),
    "mlp": ("mlp", "labels"),
    "residual": ("residual", "hidden"),
    "logits": ("residual", "logits"),
}
"""Name of a form → redhost's form and the space it writes to."""


BACKGROUND = 256
"""Questions of other ranges that the off-domain penalty is measured on."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Training settings shared by every expert of every form.

    Attributes:
        epochs: Passes over the drawn questions of the range, repeats included.
        batch: Rows a step.
        learning_rate: AdamW's peak, decayed along a cosine.
        weight_decay: AdamW's.
        off_domain: λ on the other ranges' questions, residual forms only.
        rank: R; None for D/4.
        noise: Of z while training.
    """

    epochs: int = 60
    batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    off_domain: float = 0.0
    rank: int | None = None
    noise: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Outputs:
    """Outputs of a family on N rows; every system is a function of them and of α.

    Attributes:
        base: Logits without experts ``(N, C)``; zeros for heads.
        add: Logits that each expert adds ``(N, E, C)``.
    """

    base: Tensor
    add: Tensor

    def residual(self, alpha: Tensor) -> Tensor:
        """Return softmax(base + Σ α_i add_i): RED; for heads, averaged logits."""
        return torch.softmax(self.base + torch.einsum("ne,nec->nc", alpha, self.add), dim=-1)

    def each(self) -> Tensor:
        """Return p_i ``(N, E, C)``: each expert alone with weight 1."""
        return torch.softmax(self.base[:, None, :] + self.add, dim=-1)

    def mixture(self, alpha: Tensor) -> Tensor:
        """Return Σ α_i p_i over the same experts: classical gating."""
        return torch.einsum("ne,nec->nc", alpha, self.each())


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Five experts of one form, with their parameter count and training time."""

    form: str
    experts: tuple[redhost.Expert, ...]
    parameters: int
    seconds: float

    def outputs(self, h: Tensor, classifier: Tensor) -> Outputs:
        """Return the experts' outputs on features ``(N, D)``."""
        deltas, base = self.deltas(h), h @ classifier.T
        if self.form == "residual":
            deltas = deltas @ classifier.T
        heads = self.form in {"linear", "mlp"}
        return Outputs(base=torch.zeros_like(base) if heads else base, add=deltas)

    @torch.inference_mode()
    def deltas(self, h: Tensor) -> Tensor:
        """Return each expert's own output ``(N, E, …)`` on features ``(N, D)``."""
        z = normed(h)
        return torch.stack([e(z) for e in self.experts], dim=1)

    def moved(self, h: Tensor, alpha: Tensor) -> Tensor:
        """Return h + Σ α_i Δ_i ``(N, D)`` for α ``(N, E)``; the experts write hidden states."""
        return h + torch.einsum("ne,ned->nd", alpha, self.deltas(h))

    def relative_size(self, h: Tensor) -> list[float]:
        """Return ‖Δ_i‖ / ‖h‖, the mean over rows, of each expert that writes hidden states."""
        deltas = self.deltas(h).unbind(1) if self.form == "residual" else ()
        return [float((delta.norm(dim=-1) / h.norm(dim=-1)).mean()) for delta in deltas]


def normed(h: Tensor) -> Tensor:
    """Return z = LayerNorm(h)."""
    z: Tensor = LayerNorm(width=h.shape[-1], eps=1e-5)(h)
    return z


def train_family(
    base: FrozenBase, train: Sequence[Query], *, form: str, budget: Budget, seed: int
) -> Family:
    """Train the five experts of a form, each on its own range."""
    start = time.perf_counter()
    experts = tuple(
        _train(base, train, name=name, form=form, budget=budget, seed=seed) for name in NAMES
    )
    parameters = sum(p.numel() for e in experts for p in e.parameters())
    seconds = time.perf_counter() - start
    return Family(form=form, experts=experts, parameters=parameters, seconds=seconds)


def train_monolith(
    base: FrozenBase, train: Sequence[Query], *, budget: Budget, seed: int
) -> Family:
    """Train one residual adapter with all experts' ranks on all ranges, for as many steps."""
    start = time.perf_counter()
    rank = len(NAMES) * _rank(base, "residual", budget)
    expert = _train(base, train, name=None, form="residual", budget=budget, seed=seed, rank=rank)
    return Family(
        form="residual",
        experts=(expert,),
        parameters=sum(p.numel() for p in expert.parameters()),
        seconds=time.perf_counter() - start,
    )


def _train(
    base: FrozenBase,
    train: Sequence[Query],
    *,
    name: str | None,
    form: str,
    budget: Budget,
    seed: int,
    rank: int | None = None,
) -> redhost.Expert:
    mine = [q for q in train if name is None or q.domain == name]
    others = [q for q in train if q.domain != name] if name and budget.off_domain else []
    kind, space = FORMS[form]
    settings = redhost_author.ExpertSettings(
        form=kind,
        space=space,
        rank=rank or _rank(base, form, budget),
        epochs=budget.epochs,
        batch=budget.batch,
        learning_rate=budget.learning_rate,
        weight_decay=budget.weight_decay,
        dropout=0.0,
        noise=budget.noise,
        off_domain=budget.off_domain if space != "labels" else 0.0,
        seed=seed,
    )
    return train_expert(
        _rows(base, mine),
        Readout(classifier=base.classifier, labels=LABELS),
        labels=LABELS if space == "labels" else _labels_of(mine),
        settings=settings,
        background=normed(base.h[_some(base, others)]) if others else None,
    ).expert


def _rows(base: FrozenBase, queries: Sequence[Query]) -> ExpertRows:
    """Return the questions as drawn, with repeats: one epoch as the seed defines it."""
    h = base.h[base.rows(queries)]
    return ExpertRows(h=h, z=normed(h), answers=[q.label for q in queries])


def _some(base: FrozenBase, queries: Sequence[Query]) -> Tensor:
    """Return the rows of a fixed sample of distinct questions."""
    texts = sorted({q.text for q in queries}, key=hashed)[:BACKGROUND]
    return torch.tensor([base.place[t] for t in texts])


def _labels_of(queries: Sequence[Query]) -> tuple[str, ...]:
    return tuple(sorted({q.label for q in queries}, key=int))


def _rank(base: FrozenBase, form: str, budget: Budget) -> int:
    """Return R; for `mlp`, the R with as many parameters as `residual` has."""
    width, classes = base.h.shape[1], len(LABELS)
    rank = budget.rank or width // 4
    if form != "mlp":
        return rank
    return max(1, round((2 * width * rank - classes) / (width + classes + 1)))
