"""The neural bus: norm → router → residual sum → shared classifier.

The only place where experts meet. Legend for shapes, here and in every file of `core`:
B batch, D model width, E experts, K columns (E, or E+1 with the backbone column), R rank,
C labels of the backbone's classifier, L labels of the whole bus.

    z = LayerNorm(h)                                   (B, D)
    α = softmax(router(z))                             (B, K)
    ĥ = h + Σ_i α_i Δ_i(z)                             (B, D)      seed 001, section 4.4.3
    p = softmax(W_c ĥ + Σ_i α_i Δ_i^logit(z))          (B, C)

Where experts bring labels of their own the bus is a proper mixture (seed 002):
p = α_H p_H + Σ_i α_i softmax(Δ_i^label(z) / T_i), with p_H the line above over the experts that
share the backbone's classifier, their α renormalised. p_H and every p_i are then untouched, bit
for bit, by an expert that joins with labels of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..registry.contract import VALUE
from ..registry.errors import CompositionError
from .evidence import evidence, outputs
from .experts import Expert, LowRank
from .layout import Layout, WideNorm
from .stack import LowRankStack
from .tasks import NONE, Classification, Regression, Task

__all__ = ["BACKBONE", "NONE", "Bus", "BusConfig", "LayerNorm", "union_labels"]

BACKBONE = "backbone"
"""The name of the column that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class BusConfig:
    """What a factory hook needs to know of the bus it builds for.

    Attributes:
        width: D, the width of h and z.
        labels: The labels of the backbone's classifier, C of them, in its order.
        eps: The ε of the bus norm.
        task: Whether the bus answers labels or a number.
        device: Where the parts live.
    """

    width: int
    labels: tuple[str, ...]
    eps: float = 1e-5
    task: Task = field(default_factory=Classification)
    device: str = "cpu"


class LayerNorm(nn.Module):
    """z = (h − mean h) / √(var h + ε): no learned affine, so all experts see the same z."""

    def __init__(self, *, width: int, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps

    def forward(self, h: Tensor) -> Tensor:
        """Normalise ``(…, D)`` over its last dimension."""
        return nn.functional.layer_norm(h, (self.width,), eps=self.eps)


def union_labels(
    shared: Sequence[str], experts: Mapping[str, Expert], *, task: Task
) -> tuple[str, ...]:
    """Return the bus's label space: the backbone's labels, then the experts' own, id by id.

    Without labels of the backbone the space starts with `NONE`, the backbone column's answer.
    A bus that answers a number has that one output.
    """
    if isinstance(task, Regression):
        return (VALUE,)
    labels = dict.fromkeys(shared or (NONE,))
    for expert_id in sorted(experts):
        if experts[expert_id].space == "labels":
            labels.update(dict.fromkeys(experts[expert_id].labels))
    return tuple(labels)


class Bus(nn.Module):
    """Norm, router, experts and the shared classifier, composed once and never changed.

    Args:
        norm: h → z.
        router: z → logits ``(B, K)`` over `columns`.
        experts: Expert modules by id; columns are their ids in sorted order.
        classifier: W_c ``(C, D)``, or None when the backbone has no labels.
        labels: The labels of `classifier`.
        backbone_column: Whether the router has a last column that changes nothing.
        layout: What experts read beside h; features are then h̃, and `norm` gives z̃.
    """

    def __init__(
        self,
        *,
        norm: nn.Module,
        router: nn.Module,
        experts: Mapping[str, Expert],
        classifier: Tensor | None,
        labels: Sequence[str] = (),
        task: Task | None = None,
        backbone_column: bool = False,
        layout: Layout | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout or Layout(width=0)
        self.task = task or Classification()
        self.ids = tuple(sorted(experts))
        self.columns = (*self.ids, BACKBONE) if backbone_column else self.ids
        self.norm = WideNorm(norm, self.layout) if self.layout.chunks else norm
        self.router = router
        self.experts = nn.ModuleList(experts[i] for i in self.ids)
        self.register_buffer("classifier", classifier, persistent=False)
        self.shared_labels = tuple(labels)
        self.labels = union_labels(labels, experts, task=self.task)
        self._wire()

    classifier: Tensor | None

    def _wire(self) -> None:
        """Sort the experts by where they write, and stack those that can be stacked."""
        spaces = [e.space for e in self.parts()]
        self.hidden = [i for i, s in enumerate(spaces) if s == "hidden"]
        self.logit = [i for i, s in enumerate(spaces) if s == "logits"]
        self.own = [i for i, s in enumerate(spaces) if s == "labels"]
        if self.classifier is None and (self.hidden or self.logit):
            raise CompositionError(
                "the backbone has no classifier",
                expected="experts with labels of their own",
                found=", ".join(self.ids[i] for i in self.hidden + self.logit),
            )
        place = {label: n for n, label in enumerate(self.labels)}
        self.own_labels = {
            i: torch.tensor([place[y] for y in self.parts()[i].labels]) for i in self.own
        }
        stacked = {
            i: e
            for i, e in enumerate(self.parts())
            if isinstance(e, LowRank) and not self.layout.has(self.ids[i])
        }
        self.hidden_stack = LowRankStack.of({i: stacked[i] for i in self.hidden if i in stacked})
        self.logit_stack = LowRankStack.of({i: stacked[i] for i in self.logit if i in stacked})
        self.hidden_rest = [i for i in self.hidden if i not in stacked]
        self.logit_rest = [i for i in self.logit if i not in stacked]

    def parts(self) -> list[Expert]:
        """Return the experts in column order."""
        return [e for e in self.experts if isinstance(e, Expert)]

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Answer for ``(B, D)``.

        Returns:
            The probabilities ``(B, L)`` over `labels` and the weights α ``(B, K)``.
        """
        z = self.norm(h)
        alpha = self.weights(z)
        return self.answer(h, z, alpha), alpha

    def answer(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return p(y|x) ``(B, L)`` as the router's kind combines: residual sum, or mixture."""
        if getattr(self.router, "output", "residual") == "mixture":
            return self.mixture(h, z, alpha)
        return self.probabilities(h, z, alpha)

    def weights(self, z: Tensor) -> Tensor:
        """Return α = softmax(router(z)), ``(B, K)``."""
        narrow = self.layout.narrow(z)
        if getattr(self.router, "reads_evidence", False):
            return torch.softmax(self.router(narrow, self.evidence(z)), dim=-1)
        if getattr(self.router, "reads_outputs", False):
            return torch.softmax(self.router(narrow, self.outputs(z)), dim=-1)
        return torch.softmax(self.router(narrow), dim=-1)

    def evidence(self, z: Tensor) -> Tensor:
        """Return e(z), how much each expert wants to have a say, ``(B, K)``."""
        read = [self.layout.read(z, i) for i in self.ids]
        return evidence(self.parts(), read, classifier=self.classifier, columns=len(self.columns))

    def outputs(self, z: Tensor) -> Tensor:
        """Return what the experts' outputs look like, ``(B, K, S)``."""
        read = [self.layout.read(z, i) for i in self.ids]
        return outputs(self.parts(), read, classifier=self.classifier, columns=len(self.columns))

    def delta(self, z: Tensor, column: int) -> Tensor:
        """Return Δ_i of what the expert reads of z or z̃, ``(B, out)``."""
        made: Tensor = self.parts()[column](self.layout.read(z, self.ids[column]))
        return made

    def probabilities(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return p(y|x) over `labels` ``(B, L)``, or ŷ ``(B, 1)``, for weights ``(B, K)``."""
        if not self.own:
            return self.task.output(self.logits(h, z, alpha))
        p = h.new_zeros(h.shape[0], len(self.labels))
        own = alpha[:, self.own].sum(-1, keepdim=True)
        if self.classifier is None and isinstance(self.task, Regression):
            alpha, own = alpha / own.clamp_min(1e-12), torch.ones_like(own)  # nobody else speaks
        p[:, : max(1, len(self.shared_labels))] = (1 - own) * self._shared(h, z, alpha)
        for i in self.own:
            expert = self.parts()[i]
            p_i = self.task.output(self.delta(z, i), temperature=expert.temperature)
            p = p.index_add(1, self.own_labels[i], alpha[:, i : i + 1] * p_i)
        return p

    def _shared(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return p_H, the component of all that share the classifier, ``(B, C)``."""
        if self.classifier is None:
            return h.new_full((h.shape[0], 1), float(self.task.name == "classification"))
        mine = [k for k in range(len(self.columns)) if k not in self.own]
        total = alpha[:, mine].sum(-1, keepdim=True).clamp_min(1e-12)
        return self.task.output(self.logits(h, z, alpha / total))

    def residual(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return ĥ = h + Σ_i α_i Δ_i(z), ``(B, D)`` (seed 001, section 4.4.3)."""
        h, narrow = self.layout.narrow(h), self.layout.narrow(z)
        delta = self.hidden_stack(narrow, alpha) if self.hidden_stack else None
        for i in self.hidden_rest:
            step = alpha[:, i : i + 1] * self.delta(z, i)
            delta = step if delta is None else delta + step
        return h if delta is None else h + delta

    def logits(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return W_c ĥ + Σ_i α_i Δ_i^logit(z), ``(B, C)``."""
        logits = self.residual(h, z, alpha) @ self._classifier().T
        if self.logit_stack:
            logits = logits + self.logit_stack(self.layout.narrow(z), alpha)
        for i in self.logit_rest:
            logits = logits + alpha[:, i : i + 1] * self.delta(z, i)
        return logits

    def alone(self, h: Tensor, z: Tensor, column: int) -> Tensor:
        """Return p_i(y|x), the answer with one column at 1, ``(B, L)``."""
        alpha = z.new_zeros(z.shape[0], len(self.columns))
        alpha[:, column] = 1.0
        return self.probabilities(h, z, alpha)

    def each(self, h: Tensor, z: Tensor) -> Tensor:
        """Return p_i(y|x) of every column alone, ``(B, K, L)``."""
        return torch.stack([self.alone(h, z, k) for k in range(len(self.columns))], dim=1)

    def mixture(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return Σ_i α_i p_i(y|x), ``(B, L)``: seed 002's form over the same experts."""
        return torch.einsum("bk,bkl->bl", alpha, self.each(h, z))

    def _classifier(self) -> Tensor:
        if self.classifier is None:
            raise CompositionError("the backbone has no classifier")
        return self.classifier
