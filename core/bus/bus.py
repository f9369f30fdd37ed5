"""The neural bus: norm → router → residual sum → shared classifier.

Experts are combined here and nowhere else. Let h be the encoder's state of a text and Δ_i(z) the
output of expert i. Δ_i is added to the hidden state, Δ_i^logit to the logits:

    z = LayerNorm(h)                                   (B, D)      no learned affine
    α = softmax(router(z) / T)                         (B, K)      routing weights
    ĥ = h + Σ_i α_i Δ_i(z)                             (B, D)      seed 001, section 4.4.3
    p = softmax(W_c ĥ + Σ_i α_i Δ_i^logit(z))          (B, C)      W_c frozen and shared

Experts with labels of their own are combined as a proper mixture of experts (seed 002):

    p = α_H p_H + Σ_i α_i p_i,     p_i = softmax(Δ_i^label(z) / T_i)                      (B, L)

α_H is the total weight of all columns without labels of their own. p_H is the residual form above
over the experts among them, which share the backbone's classifier, with their weights renormalised.
Adding an expert with labels of its own thus leaves p_H and every other p_i bitwise identical. In a
multi-label task the mean for a label is over the columns that support it (`label_set_head`).

Shapes, here and in every file of `core`: B batch, D model width, E experts, K columns (E, or E+1
with the backbone column), R rank, C labels of the backbone's classifier, L labels of the whole bus.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..label_sets import DECLINED
from .ensemble import Ensemble
from .experts import Expert
from .head import Head
from .layout import FeatureLayout, WideNorm
from .signals import QUERY, BusRouter, RouterSignals
from .strategies import ExpertOutputs, ForwardStrategy, choose_strategy
from .task import CLASSIFICATION, Task

BACKBONE = "backbone"
"""The name of the column that adds no Δ: its answer is the backbone's own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Readout:
    """What reads answers from h: every `Backbone` is one.

    Attributes:
        classifier: W_c ``(C, D)``; None if it predicts nothing itself. For text generation, the
            language-model head.
        labels: The C labels, in the classifier's order.
        task: What is predicted: labels, a number, or the next token.
    """

    classifier: Tensor | None = None
    labels: tuple[str, ...] = ()
    task: Task = CLASSIFICATION


class Bus(nn.Module):
    """Norm, router, experts and the shared classifier: built once, immutable afterwards.

    Args:
        readout: The shared classifier, its labels, and the task: usually the backbone.
        norm: h → z.
        router: z, and the signals that it reads, → logits ``(B, K)`` over `columns`.
        experts: Expert modules by id; columns are their ids in sorted order.
        backbone_column: Whether the router has a last column for the backbone alone.
        layout: What experts read in addition to h; features are then h̃, and `norm` returns z̃.
        strategy: How the experts are summed; by default chosen for router, experts and device.
        combiner: What combines the experts' outputs; by default the residual sum.

    Attributes:
        columns: What α weights: the experts' ids, then `BACKBONE` if there is such a column.
        labels: The label space of the bus, L labels.
        answers: How many outputs a row has: L, or the size of the vocabulary.
    """

    router: BusRouter

    def __init__(
        self,
        readout: Readout,
        *,
        norm: nn.Module,
        router: BusRouter,
        experts: Mapping[str, Expert],
        backbone_column: bool = False,
        layout: FeatureLayout | None = None,
        strategy: ForwardStrategy | None = None,
        combiner: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout or FeatureLayout(width=0)
        self.ids = tuple(sorted(experts))
        self.columns = (*self.ids, BACKBONE) if backbone_column else self.ids
        self.norm = WideNorm(norm, self.layout) if self.layout.segments else norm
        self.router = router
        self.experts = nn.ModuleList(experts[i] for i in self.ids)
        self.ensemble = Ensemble(
            experts,
            classifier=readout.classifier,
            layout=self.layout,
            strategy=strategy
            or choose_strategy(
                experts.values(),
                chosen=router.chosen,
                queries=QUERY in router.reads,
                classifier=readout.classifier,
            ),
            columns=len(self.columns),
            combiner=combiner,
        )
        self.own, self.shared_labels = self.ensemble.own, readout.labels
        own_labels = [y for k in self.own for y in self.ensemble.parts[k].labels]
        self.labels = readout.task.head.label_space(readout.labels, own_labels)
        self.task = replace(readout.task, head=readout.task.head.fitted_by(experts.values()))
        self.answers = max(len(self.labels), 0 if self.classifier is None else len(self.classifier))
        self.shared = tuple(sorted({*range(len(self.columns))} - {*self.own}))
        place = {label: n for n, label in enumerate(self.labels)}
        self.own_labels = {
            i: torch.tensor([place[y] for y in experts[self.ids[i]].labels]) for i in self.own
        }
        self._places = {
            columns: (torch.tensor(columns), torch.cat([self.own_labels[k] for k in columns]))
            for columns in self.ensemble.own_columns
        }
        self.register_buffer("knows", self._knows(), persistent=False)

    knows: Tensor | None
    """For a multi-label task, whether a column supports a label, ``(K, L)`` of 0.0 and 1.0. Only
    the labels that experts bring are filled in: `_mixed` adds those of the backbone."""

    def _knows(self) -> Tensor | None:
        if not self.own or not self.task.head.several:
            return None
        knows = torch.zeros(len(self.columns), len(self.labels))
        for column, labels in self.own_labels.items():
            knows[column, labels] = 1.0
        if len(self.columns) > len(self.ids):  # out-of-distribution texts have none of them
            knows[-1, len(self.shared_labels) :] = 1.0
        return knows

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Compute answers for features ``(B, D)``.

        Returns:
            The probabilities ``(B, L)`` over `labels` and the weights α ``(B, K)``.
        """
        z = self.norm(h)
        signals = RouterSignals(z, ensemble=self.ensemble, reads=self.router.reads)
        alpha = self.router.weights(signals.z, signals)  # (B, K)
        if self.router.output == "mixture":
            return self.mixture(h, z, alpha), alpha
        # All but `chosen` weights of a row are zero: only certain if the router made them, as here.
        chosen = self.router.chosen if self.ensemble.strategy == "gathered" else None
        # What the router has computed of the experts is used again: none computes a row twice.
        return self.probabilities(h, z, alpha, outputs=signals.outputs, chosen=chosen), alpha

    def signals(self, z: Tensor, *, reads: Collection[str] | None = None) -> RouterSignals:
        """Return the signals that a router may read for z ``(B, D)``; `reads` None allows all."""
        return RouterSignals(z, ensemble=self.ensemble, reads=reads)

    def weights(self, z: Tensor) -> Tensor:
        """Return α = softmax(router(z) / T), ``(B, K)``."""
        signals = self.signals(z, reads=self.router.reads)
        return self.router.weights(signals.z, signals)

    # -- answers for given weights --------------------------------------------------------------

    def residual(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return ĥ = h + Σ_i α_i Δ_i(z), ``(B, D)`` (seed 001, section 4.4.3)."""
        return self.ensemble.residual(h, z, alpha)

    def logits(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return W_c ĥ + Σ_i α_i Δ_i^logit(z), ``(B, C)``."""
        return self.ensemble.logits(h, z, alpha)

    def probabilities(
        self,
        h: Tensor,
        z: Tensor,
        alpha: Tensor,
        *,
        outputs: ExpertOutputs | None = None,
        chosen: int | None = None,
    ) -> Tensor:
        """Return p(y|x) over `labels` ``(B, L)``, or ŷ ``(B, 1)``, for weights ``(B, K)``.

        The last two arguments are those of `Ensemble.residual`.
        """
        if outputs is None:
            outputs = self.ensemble.selected_outputs(z, alpha)
        if not self.own:
            logits = self.ensemble.logits(h, z, alpha, outputs=outputs, chosen=chosen)
            return self.task.head.output(logits)
        p = h.new_zeros(h.shape[0], len(self.labels))
        answered = len(self.shared_labels) or int(self.labels[0] == DECLINED)  # by p_H
        own_weight = alpha[:, self.own].sum(1, keepdim=True)  # (B, 1)
        if self.classifier is None and not self.task.head.probabilities:
            # No p_H takes the rest of the weight; a number is a mean, so the weights sum to 1.
            alpha, own_weight = alpha / own_weight.clamp_min(1e-12), torch.ones_like(own_weight)
        if answered:
            shared = self._shared(h, z, alpha, outputs=outputs, chosen=chosen)
            p[:, :answered] = (1 - own_weight) * shared
        if outputs is None:
            for columns, p_i in self._own_probabilities(z):  # (n, B, L_i)
                own_columns, places = (t.to(p.device) for t in self._places[columns])
                weighted = alpha.index_select(1, own_columns).T[..., None] * p_i
                # Added, not assigned: experts may have a label in common.
                p = p.index_add(1, places, weighted.transpose(0, 1).flatten(1))
            return self._mixed(p, alpha)
        for o in outputs:
            if o.column not in self.own_labels:
                continue
            labels, weight = self.own_labels[o.column].to(p.device), alpha[:, o.column, None]
            temperature = self.ensemble.parts[o.column].temperature
            p_i = self.task.head.output(o.delta, temperature=temperature)  # (n, L_i)
            if o.rows is None:
                p = p.index_add(1, labels, weight * p_i)
            else:
                at = o.rows[:, None], labels
                p = p.index_put(at, weight[o.rows] * p_i, accumulate=True)
        return self._mixed(p, alpha)

    def _mixed(self, p: Tensor, alpha: Tensor) -> Tensor:
        """Return Σ_i α_i p_i ``(B, L)``; multi-label: the mean over the columns with the label."""
        if self.knows is None:
            return p
        support = alpha @ self.knows  # (B, L)
        # 1 − Σ α_own is the weight of p_H, which supports every label of the backbone.
        support[:, : len(self.shared_labels)] += 1 - alpha[:, self.own].sum(1, keepdim=True)
        return self.task.head.mixed(p, support)

    def _own_probabilities(self, z: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Yield p_i ``(n, B, L_i)`` of experts with labels of their own, a stack at a time."""
        for columns, delta, temperature in self.ensemble.own_outputs(z):
            yield columns, self.task.head.output(delta, temperature=temperature)

    def _shared(
        self,
        h: Tensor,
        z: Tensor,
        alpha: Tensor,
        *,
        outputs: ExpertOutputs | None,
        chosen: int | None,
    ) -> Tensor:
        """Return p_H, the component of all columns that share the classifier, ``(B, C)``."""
        if self.classifier is None:
            return torch.ones_like(h[:, :1])  # `DECLINED`, of a head that has it
        # Renormalised, so that an expert with labels of its own leaves p_H bitwise as it was.
        total = alpha[:, self.shared].sum(1, keepdim=True).clamp_min(1e-12)
        logits = self.ensemble.logits(h, z, alpha / total, outputs=outputs, chosen=chosen)
        return self.task.head.output(logits)

    def mixture(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return Σ_i α_i p_i(y|x), ``(B, L)``: the mixture form (seed 002) of the same experts."""
        return self._mixed(torch.einsum("bk,bkl->bl", alpha, self.each(h, z)), alpha)

    def answer(self, h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        """Return p(y|x) ``(B, L)`` in the router's form: residual sum, or mixture."""
        # Both forms of the same experts: the router was trained for one of them (seed 002).
        combine = self.mixture if self.router.output == "mixture" else self.probabilities
        return combine(h, z, alpha)

    def only(self, z: Tensor, column: int) -> Tensor:
        """Return one-hot weights on one column, ``(B, K)``."""
        alpha = z.new_zeros(z.shape[0], len(self.columns))
        alpha[:, column] = 1.0
        return alpha

    def alone(self, h: Tensor, z: Tensor, column: int) -> Tensor:
        """Return p_i(y|x), the answer with one column at weight 1, ``(B, L)``."""
        return self.probabilities(h, z, self.only(z, column))

    def each(self, h: Tensor, z: Tensor) -> Tensor:
        """Return p_i(y|x) of every column alone, ``(B, K, L)``."""
        return torch.stack([self.alone(h, z, k) for k in range(len(self.columns))], dim=1)

    def own_answer(self, h: Tensor, z: Tensor, column: int) -> Tensor:
        """Return p_i(y|x) over `answered_by`, ``(B, L_i)``; no other expert is run."""
        outputs = self.ensemble.expert_outputs(z, [(column, None)])
        p = self.probabilities(h, z, self.only(z, column), outputs=outputs)
        labels = self.own_labels.get(column)
        return p[:, : len(self.shared_labels) or 1] if labels is None else p[:, labels.to(p.device)]

    def own_answers(self, h: Tensor, z: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Yield columns and their p_i(y|x) ``(n, B, L_i)``, covering every expert once."""
        # Stacks first: experts of one form are a single batched product.
        yield from self._own_probabilities(z)
        for column in range(len(self.ids)):
            if column not in self.own_labels:
                yield (column,), self.own_answer(h, z, column)[None]

    def answered_by(self, column: int) -> tuple[str, ...]:
        """Return the labels that an expert predicts: its own, or the backbone's."""
        expert = self.ensemble.parts[column]
        return expert.labels if column in self.own_labels else self.shared_labels

    def head_of(self, column: int) -> Head:
        """Return the head that decodes one expert's output, with what its author fitted."""
        return self.task.head.fitted_by([self.ensemble.parts[column]])

    def annotated(self, p: Tensor, owner: Callable[[], Tensor]) -> Tensor:
        """Return outputs ``(N, L)`` of rows annotated for their own expert's labels only.

        In a multi-label task, the probabilities of other labels are set to 0.

        Args:
            p: The bus output for the rows.
            owner: Returns the column of each row's expert, as for `labels_known`.
        """
        return p * self.labels_known(owner()).to(p) if self.task.head.several else p

    def labels_known(self, owner: Tensor) -> Tensor:
        """Return which labels each row's expert supports, ``(N, L)`` of 0.0 and 1.0.

        Args:
            owner: The column of each row's expert ``(N,)``; −1 stands for one that supports all.
        """
        supported = torch.zeros(len(self.columns) + 1, len(self.labels))
        supported[list(self.shared), : len(self.shared_labels)] = 1.0
        for column, labels in self.own_labels.items():
            supported[column, labels] = 1.0
        # Indexed by −1: rows of nobody in particular are annotated for all labels.
        supported[-1] = 1.0
        return supported[owner]

    # -- parts ----------------------------------------------------------------------------------

    @property
    def readout(self) -> Readout:
        """The shared classifier, its labels, and the task."""
        return Readout(classifier=self.classifier, labels=self.shared_labels, task=self.task)

    @property
    def classifier(self) -> Tensor | None:
        """W_c ``(C, D)``, where the backbone has labels."""
        return self.ensemble.classifier

    def parts(self) -> list[Expert]:
        """Return the experts in column order."""
        return list(self.ensemble.parts)

    def delta(self, z: Tensor, column: int) -> Tensor:
        """Return Δ_i of the part of z or z̃ that the expert reads, ``(B, out)``."""
        return self.ensemble.delta(z, column)


class LayerNorm(nn.Module):
    """z = (h − mean h) / √(var h + ε): no learned affine, so all experts see the same z."""

    def __init__(self, *, width: int, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps

    def forward(self, h: Tensor) -> Tensor:
        """Normalise ``(…, D)`` over its last dimension."""
        return nn.functional.layer_norm(h, (self.width,), eps=self.eps)


@dataclass(frozen=True, kw_only=True)
class BusConfig:
    """The configuration of a bus, as a factory hook needs it to build a part.

    Attributes:
        width: D, the width of h and z.
        labels: The labels of the backbone's classifier, C of them, in its order.
        eps: The ε of the bus norm.
        task: Whether the bus answers labels, a number, or the next token.
        context: Width of the context that the router reads in addition to z, in generation.
        device: Where the parts live.
    """

    width: int
    labels: tuple[str, ...]
    eps: float = 1e-5
    task: Task = CLASSIFICATION
    context: int = 0
    device: str = "cpu"

    @property
    def router_width(self) -> int:
        """Width of the router's input for a row."""
        return self.width + self.context
