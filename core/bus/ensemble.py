"""The experts of a bus by column: their outputs Δ, their confidences and their weighted sum.

`strategies` chooses one of three passes for the sum; its data is prepared here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from ...registry.errors import CompositionError
from .combiner import ResidualSum
from .evidence import confidence_of, readout_factor
from .experts import Expert, LowRank
from .head_stack import head_stacks
from .layout import FeatureLayout
from .lowrank_stack import LowRankStack
from .strategies import (
    ExpertOutput,
    ExpertOutputs,
    ForwardStrategy,
    active_columns,
    concat_outputs,
)


class Ensemble(nn.Module):
    """Experts by column, grouped by the space that they write to.

    Args:
        experts: By id; columns are their ids in sorted order.
        classifier: W_c ``(C, D)``, or None.
        layout: What they read in addition to h.
        strategy: Which pass sums them.
        columns: K: the number of experts, plus one if there is a backbone column.
        combiner: What combines their outputs; by default the residual sum.

    Raises:
        CompositionError: If an expert needs a classifier and there is none.
    """

    def __init__(
        self,
        experts: Mapping[str, Expert],
        *,
        classifier: Tensor | None,
        layout: FeatureLayout,
        strategy: ForwardStrategy,
        columns: int,
        combiner: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.combiner = combiner or ResidualSum()
        self.ids = tuple(sorted(experts))
        self.parts = tuple(experts[i] for i in self.ids)  # a tuple: the bus registers the modules
        with torch.no_grad():  # all experts on a bus are frozen
            self.answering = tuple(e.folded() for e in self.parts)
        # Registered, so that their buffers move with the bus.
        self.folded = nn.ModuleList(e for e in self.answering if e not in self.parts)
        self.layout, self.strategy, self.columns = layout, strategy, columns
        self.register_buffer("classifier", classifier, persistent=False)
        # In column order: sums run in this order in every pass, and so round alike.
        self.hidden, self.logit, self.own = (
            tuple(i for i, e in enumerate(self.parts) if e.space == space)
            for space in ("hidden", "logits", "labels")
        )
        if classifier is None and (self.hidden or self.logit):
            raise CompositionError(
                "the backbone has no classifier",
                expected="experts with labels of their own",
                found=", ".join(self.ids[i] for i in (*self.hidden, *self.logit)),
            )
        segmented = {reader for s in layout.segments for reader in s.readers}
        # Low-rank experts that read z itself can be stacked, in the passes that use stacks.
        alike = {
            k: part
            for k, part in enumerate(self.parts)
            if isinstance(part, LowRank) and self.ids[k] not in segmented and strategy != "grouped"
        }
        stacked = ({k: alike[k] for k in ks if k in alike} for ks in (self.hidden, self.logit))
        self.hidden_stack, self.logit_stack = (LowRankStack(s) if s else None for s in stacked)
        heads = {k: self.answering[k] for k in self.own if self.ids[k] not in segmented}
        stacks = [] if strategy == "grouped" else head_stacks(heads)
        self.head_stacks = nn.ModuleList(stacks)
        self._stacks = {stack.columns: stack for stack in stacks}
        # A plugin's form has no stack: such an expert answers by itself.
        alone = {*self.own}.difference(*self._stacks)
        self.own_columns = tuple(sorted((*self._stacks, *((k,) for k in alone))))

    classifier: Tensor | None

    @cached_property
    def readout_factor(self) -> Tensor | None:
        """The matrix ``(…, D)`` that confidences are measured with, computed on first use."""
        return readout_factor(self.classifier)

    # -- outputs ------------------------------------------------------------------------------

    def delta(self, z: Tensor, column: int) -> Tensor:
        """Return Δ_i of the part of z or z̃ that it reads, ``(B, out)``, in the precision of z."""
        expert, read = self.answering[column], self.layout.read(z, self.ids[column])
        # A plugin may keep weights in another precision; the bus sums in that of z.
        delta: Tensor = expert(read.to(expert.precision)).to(z.dtype)
        return delta

    def own_outputs(self, z: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor, float | Tensor]]:
        """Yield columns, Δ ``(n, B, L)`` and temperatures of experts with labels of their own.

        A stack of experts is yielded as one item; items are in the order of their first columns.
        """
        base = self.layout.base(z)
        for columns in self.own_columns:
            stack = self._stacks.get(columns)
            if stack is not None:
                yield columns, stack(base), stack.temperature
            else:
                [column] = columns
                yield columns, self.delta(z, column)[None], self.parts[column].temperature

    def expert_outputs(
        self, z: Tensor, columns: Iterable[tuple[int, Tensor | None]]
    ) -> ExpertOutputs:
        """Return Δ of each column on its rows of z ``(B, D)``; the backbone's column has none."""
        return tuple(
            ExpertOutput(column, rows, self.delta(z if rows is None else z[rows], column))
            for column, rows in columns
            if column < len(self.ids)
        )

    def all_outputs(self, z: Tensor) -> ExpertOutputs:
        """Return Δ of all experts on all rows ``(B, D)``; each stack takes one pass."""
        base, deltas = self.layout.base(z), dict[int, Tensor]()
        for stack in filter(None, (self.hidden_stack, self.logit_stack)):
            deltas |= stack.each(base)
        return tuple(
            ExpertOutput(i, None, deltas[i] if i in deltas else self.delta(z, i))
            for i in range(len(self.ids))
        )

    def selected_outputs(self, z: Tensor, alpha: Tensor) -> ExpertOutputs | None:
        """Return Δ where α ``(B, K)`` is not zero, if the pass is `grouped`; else None."""
        return self.expert_outputs(z, active_columns(alpha)) if self.strategy == "grouped" else None

    def confidences(self, outputs: Iterable[ExpertOutput], z: Tensor) -> Tensor:
        """Return the confidences e of these outputs, ``(B, K)``; zero for all other entries."""
        confidences = z.new_zeros(z.shape[0], self.columns)
        groups: dict[str | int, list[ExpertOutput]] = {}
        for o in outputs:  # experts that share the classifier are measured in one product
            space = self.parts[o.column].space
            groups.setdefault(o.column if space == "labels" else space, []).append(o)
        for group in groups.values():
            rows, places, delta = concat_outputs(group, len(z))
            confidences[rows, places] = confidence_of(
                self.parts[group[0].column], delta, self.readout_factor
            )
        return confidences

    # -- summing ------------------------------------------------------------------------------

    def residual(
        self,
        h: Tensor,
        z: Tensor,
        alpha: Tensor,
        *,
        outputs: ExpertOutputs | None = None,
        chosen: int | None = None,
    ) -> Tensor:
        """Return ĥ = h + Σ_i α_i Δ_i(z), ``(B, D)``.

        Args:
            h: Features ``(B, D)``, or h̃.
            z: Bus vectors ``(B, D)``, or z̃.
            alpha: Weights ``(B, K)``.
            outputs: Δ of every expert with a weight; computed here if None.
            chosen: How many columns have a weight in each row, if these are known to be few.
        """
        outputs = self.selected_outputs(z, alpha) if outputs is None else outputs
        stacked, base = (self.hidden_stack, chosen), self.layout.base(h)
        hat = self._add(base, z, alpha, outputs, self.hidden, stacked)
        # What another combiner makes of Δ is no sum, and has lost no bits.
        if not self._sums:
            return hat
        # In floats h + (h' − h) may differ from h'. Adding the lost part makes α = 1 exactly h'.
        for segment, moved in self.layout.moved(h):
            lost = moved - (base + (moved - base))
            for column in (self.ids.index(i) for i in segment.readers if i in self.ids):
                hat = hat + alpha[:, column, None] * lost
        return hat

    def logits(
        self,
        h: Tensor,
        z: Tensor,
        alpha: Tensor,
        *,
        outputs: ExpertOutputs | None = None,
        chosen: int | None = None,
    ) -> Tensor:
        """Return W_c ĥ + Σ_i α_i Δ_i^logit(z), ``(B, C)``; arguments as for `residual`."""
        if self.classifier is None:
            raise CompositionError("the backbone has no classifier")
        outputs = self.selected_outputs(z, alpha) if outputs is None else outputs
        hat = self.residual(h, z, alpha, outputs=outputs, chosen=chosen)  # (B, D)
        shared = hat @ self.classifier.T  # (B, C)
        return self._add(shared, z, alpha, outputs, self.logit, (self.logit_stack, chosen))

    def _add(
        self,
        out: Tensor,
        z: Tensor,
        alpha: Tensor,
        outputs: ExpertOutputs | None,
        columns: tuple[int, ...],
        stacked: tuple[LowRankStack | None, int | None],
    ) -> Tensor:
        """Return out + Σ α_i Δ_i ``(B, out)`` over some columns, stacked or one by one."""
        if not columns:
            return out
        if not self._sums:
            return self._combined(out, z, alpha, outputs, columns)
        if outputs is None:
            stack, chosen = stacked
            if stack is not None:  # experts that read a segment of their own are added one by one
                out = out + stack(self.layout.base(z), alpha, chosen=chosen)
                columns = tuple(i for i in columns if i not in stack.columns)
            outputs = self.expert_outputs(z, ((i, None) for i in columns))
        added = frozenset(columns)
        outputs = tuple(o for o in outputs if o.column in added)
        if not outputs:
            return out
        rows, places, delta = concat_outputs(outputs, len(out))
        # One scatter for all experts, in the order of columns: the sum keeps its bits.
        return out.index_add(0, rows, alpha[rows, places, None] * delta)

    @property
    def _sums(self) -> bool:
        """Whether the combiner is the residual sum, which the passes here compute without it."""
        return type(self.combiner) is ResidualSum

    def _combined(
        self,
        out: Tensor,
        z: Tensor,
        alpha: Tensor,
        outputs: ExpertOutputs | None,
        columns: tuple[int, ...],
    ) -> Tensor:
        """Return what another combiner makes of out ``(B, out)`` and some columns."""
        if outputs is None:
            outputs = self.expert_outputs(z, ((i, None) for i in columns))
        place = {column: n for n, column in enumerate(columns)}
        delta = out.new_zeros(len(out), len(columns), out.shape[1])
        for o in outputs:
            if o.column in place:
                rows = slice(None) if o.rows is None else o.rows
                delta[rows, place[o.column]] = o.delta
        combined: Tensor = self.combiner(out, alpha[:, list(columns)], delta)
        return combined
