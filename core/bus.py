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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from ..registry.contract import VALUE
from .ensemble import Ensemble, Kernel, Speech, suited
from .evidence import outputs
from .experts import Expert
from .layout import Layout, WideNorm
from .said import Said, active
from .tasks import NONE, Classification, Regression, Task

__all__ = ["BACKBONE", "NONE", "Asks", "Bus", "BusConfig", "LayerNorm", "union_labels"]

BACKBONE = "backbone"
"""The name of the column that changes nothing."""


class Asks(Protocol):
    """A router that hears the experts of its choice before it decides (`Router.asks`)."""

    def listen(self, z: Tensor, hear: Callable[[Tensor], Tensor]) -> Tensor:
        """Return logits ``(B, K)``."""
        ...


@dataclass(frozen=True, kw_only=True)
class BusConfig:
    """What a factory hook needs to know of the bus it builds for.

    Attributes:
        width: D, the width of h and z.
        labels: The labels of the backbone's classifier, C of them, in its order.
        eps: The ε of the bus norm.
        task: Whether the bus answers labels, a number, or the next token.
        context: How many numbers the router reads beside z, where text is generated.
        device: Where the parts live.
    """

    width: int
    labels: tuple[str, ...]
    eps: float = 1e-5
    task: Task = field(default_factory=Classification)
    context: int = 0
    device: str = "cpu"

    @property
    def heard(self) -> int:
        """How many numbers the router reads of a row."""
        return self.width + self.context


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
        kernel: How the experts are summed; by default what suits router, experts and device.
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
        kernel: Kernel | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout or Layout(width=0)
        self.task = task or Classification()
        self.ids = tuple(sorted(experts))
        self.columns = (*self.ids, BACKBONE) if backbone_column else self.ids
        self.norm = WideNorm(norm, self.layout) if self.layout.chunks else norm
        self.router = router
        self.experts = nn.ModuleList(experts[i] for i in self.ids)
        self.ensemble = Ensemble(
            experts,
            classifier=classifier,
            layout=self.layout,
            kernel=kernel or suited(experts.values(), router=router, classifier=classifier),
        )
        self.shared_labels = tuple(labels)
        self.labels = union_labels(labels, experts, task=self.task)
        self.own = self.ensemble.own
        self.shared = tuple(sorted({*range(len(self.columns))} - {*self.own}))
        place = {label: n for n, label in enumerate(self.labels)}
        self.own_labels = {
            i: torch.tensor([place[y] for y in experts[self.ids[i]].labels]) for i in self.own
        }

    @property
    def classifier(self) -> Tensor | None:
        """W_c ``(C, D)``, where the backbone has labels."""
        return self.ensemble.classifier

    @property
    def answers(self) -> int:
        """How many probabilities a row has: labels, or the tokens of a vocabulary."""
        return max(len(self.labels), 0 if self.classifier is None else len(self.classifier))

    def parts(self) -> list[Expert]:
        """Return the experts in column order."""
        return list(self.ensemble.parts)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Answer for ``(B, D)``.

        Returns:
            The probabilities ``(B, L)`` over `labels` and the weights α ``(B, K)``.
        """
        z = self.norm(h)
        alpha, said = self._route(z)
        if self._output == "mixture":
            return self.mixture(h, z, alpha), alpha
        if said is None:
            said = self.ensemble.asked(z, alpha)
        chosen = self.chosen if self.ensemble.kernel == "gathered" else None
        return self._probabilities(h, z, alpha, said=said, chosen=chosen), alpha

    def answer(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return p(y|x) ``(B, L)`` as the router's kind combines: residual sum, or mixture."""
        if self._output == "mixture":
            return self.mixture(h, z, alpha)
        return self.probabilities(h, z, alpha)

    @property
    def _output(self) -> str:
        return getattr(self.router, "output", "residual")

    @property
    def chosen(self) -> int | None:
        """How many columns the router gives a say in each row; None for all."""
        return getattr(self.router, "chosen", None)

    # -- routing ------------------------------------------------------------------------------

    def weights(self, z: Tensor) -> Tensor:
        """Return α = softmax(router(z)), ``(B, K)``."""
        return self._route(z)[0]

    def _route(self, z: Tensor) -> tuple[Tensor, Speech | None]:
        """Return α, and what experts had to say before it was known; None if nothing."""
        narrow, said = self.layout.hear(z), None
        if getattr(self.router, "asks", False):
            heard: list[Said] = []

            def hear(mask: Tensor) -> Tensor:
                heard.extend(self.ensemble.speak(z, active(mask)))
                return self.ensemble.voices(heard, z, columns=len(self.columns))

            logits = cast("Asks", self.router).listen(narrow, hear)
            said = tuple(heard)
        elif getattr(self.router, "reads_evidence", False):
            said = self.ensemble.all(z)
            logits = self.router(narrow, self.ensemble.voices(said, z, columns=len(self.columns)))
        elif getattr(self.router, "reads_outputs", False):
            logits = self.router(narrow, self.outputs(z))
        else:
            logits = self.router(narrow)
        return torch.softmax(logits, dim=-1), said

    def evidence(self, z: Tensor) -> Tensor:
        """Return e(z), how much each expert wants to have a say, ``(B, K)``."""
        return self.ensemble.voices(self.ensemble.all(z), z, columns=len(self.columns))

    def outputs(self, z: Tensor) -> Tensor:
        """Return what the experts' outputs look like, ``(B, K, S)``."""
        read = [self.layout.read(z, i) for i in self.ids]
        return outputs(self.parts(), read, classifier=self.classifier, columns=len(self.columns))

    def delta(self, z: Tensor, column: int) -> Tensor:
        """Return Δ_i of what the expert reads of z or z̃, ``(B, out)``."""
        return self.ensemble.delta(z, column)

    # -- answering ----------------------------------------------------------------------------

    def probabilities(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return p(y|x) over `labels` ``(B, L)``, or ŷ ``(B, 1)``, for weights ``(B, K)``."""
        return self._probabilities(h, z, alpha, said=self.ensemble.asked(z, alpha))

    def _probabilities(
        self, h: Tensor, z: Tensor, alpha: Tensor, *, said: Speech | None, chosen: int | None = None
    ) -> Tensor:
        """Return p(y|x); the last two arguments are those of `Ensemble.residual`."""
        if not self.own:
            logits = self.ensemble.logits(h, z, alpha, said=said, chosen=chosen)
            return self.task.output(logits)
        p = h.new_zeros(h.shape[0], len(self.labels))
        own = alpha[:, self.own].sum(-1, keepdim=True)
        if self.classifier is None and isinstance(self.task, Regression):
            alpha, own = alpha / own.clamp_min(1e-12), torch.ones_like(own)  # nobody else speaks
        shared = self._shared(h, z, alpha, said=said, chosen=chosen)
        p[:, : max(1, len(self.shared_labels))] = (1 - own) * shared
        if said is None:
            said = self.ensemble.speak(z, ((i, None) for i in self.own))
        for s in said:
            if s.column in self.own_labels:
                p = self._add_own(p, s, alpha)
        return p

    def _add_own(self, p: Tensor, s: Said, alpha: Tensor) -> Tensor:
        """Return p + α_i p_i for an expert with labels of its own."""
        temperature = self.ensemble.parts[s.column].temperature
        labels, weight = self.own_labels[s.column].to(p.device), alpha[:, s.column, None]
        p_i = self.task.output(s.delta, temperature=temperature)
        if s.rows is None:
            return p.index_add(1, labels, weight * p_i)
        return p.index_put((s.rows[:, None], labels), weight[s.rows] * p_i, accumulate=True)

    def _shared(
        self, h: Tensor, z: Tensor, alpha: Tensor, *, said: Speech | None, chosen: int | None
    ) -> Tensor:
        """Return p_H, the component of all that share the classifier, ``(B, C)``."""
        if self.classifier is None:
            return h.new_full((h.shape[0], 1), float(self.task.name == "classification"))
        total = alpha[:, self.shared].sum(-1, keepdim=True).clamp_min(1e-12)
        logits = self.ensemble.logits(h, z, alpha / total, said=said, chosen=chosen)
        return self.task.output(logits)

    def residual(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return ĥ = h + Σ_i α_i Δ_i(z), ``(B, D)`` (seed 001, section 4.4.3)."""
        return self.ensemble.residual(h, z, alpha, said=self.ensemble.asked(z, alpha))

    def logits(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return W_c ĥ + Σ_i α_i Δ_i^logit(z), ``(B, C)``."""
        return self.ensemble.logits(h, z, alpha, said=self.ensemble.asked(z, alpha))

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
