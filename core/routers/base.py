"""What every router kind shares: columns by name, and rows that belong to one column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..bus.signals import BusRouter, RouterSignals
from ..bus.truncated_logits import TruncatedLogits
from ..receipt import MinimaxReport
from ..types import Progress
from .domain_statistics import Statistics
from .label_products import runs_of

PRIOR = "log_prior"
"""The name of a prior among a file's tensors; no weight of a router may have it."""


@dataclass(frozen=True, eq=False)
class AnswerLikelihoods:
    """Rows with the likelihood of their answers: z ``(N, D)`` and p_k(y|x) ``(N, K)``.

    For a kind that reads truncated logits also what the residual sum makes of them.
    """

    z: Tensor
    likelihood: Tensor
    truncated: TruncatedLogits | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnData:
    """What a router may learn of one column.

    Attributes:
        column: The expert's id, or the backbone column's name.
        z: Rows of the column's domain, ``(N, D)``; drawn from `statistics` where the card
            ships no rows.
        statistics: The sums of the domain.
        labels: The label of each row, as the statistics have them; empty where rows were drawn.
        signals: What else a router reads of the rows; None before there are experts.
        likelihood: p_k(y|x) of each row's own answer by each column alone, ``(N, K)``; None
            where the card has no texts with answers, or the router does not read answers.
        truncated: What the residual sum makes of the rows' answers, where the router reads that.
        gate: The same for rows the router does not learn from.
    """

    column: str
    z: Tensor
    statistics: Statistics
    labels: tuple[str, ...] = ()
    signals: RouterSignals | None = None
    likelihood: Tensor | None = None
    truncated: TruncatedLogits | None = None
    gate: AnswerLikelihoods | None = None


class Router(BusRouter):
    """The gate: z → logits, one for each column. The only thing `recompose` trains.

    A kind with a closed form implements `solve`; the others are trained by gradient. Parameters
    named by `column_parameters` have one row for each column, which is what level `row` moves. A
    kind names in `reads` what it reads beside z (`core.bus.signals`). A weight of exactly zero is
    written as a logit of −∞, and a kind that writes all but a few so says in `chosen` how many it
    leaves. `output` says how the bus combines by its weights.

    Args:
        width: D, the width of z.
        columns: The columns' names, K of them.
        seed: Where random initial weights come from.
    """

    kind: ClassVar[str]
    closed_form: ClassVar[bool] = False
    options: ClassVar[Mapping[str, type[int] | type[float]]] = {}
    minimax_report: MinimaxReport | None = None
    """How the last game of a kind that plays one ended; None before there was one."""

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__()
        self.width, self.columns, self.seed = width, columns, seed

    def prepare(self, columns: Sequence[ColumnData]) -> None:
        """Look at the data once before training by gradient; most kinds need not."""

    def training_logits(
        self, z: Tensor, signals: RouterSignals | None, *, generator: torch.Generator
    ) -> Tensor:
        """Return the logits that are trained ``(B, K)``: before anything is cut, with any noise.

        Args:
            z: Bus vectors ``(B, D)``.
            signals: What the kind reads beside z.
            generator: Where noise comes from.
        """
        logits: Tensor = self(z, signals)
        return logits

    def fine_tune(
        self,
        columns: Sequence[ColumnData],
        *,
        steps: int,
        progress: Progress | None = None,
    ) -> None:
        """Go on after the weights were trained to tell the columns apart; most kinds are done."""

    def penalty(self, logits: Tensor, weight: Tensor) -> Tensor:
        """Return what is added to the loss for logits ``(B, K)`` of rows that weigh ``(B,)``."""
        return logits.new_zeros(())

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set the weights in closed form.

        Args:
            columns: The data of all columns, in column order.
            only: For level `row`, the columns that may move; the others keep every bit.
        """
        raise NotImplementedError(f"a {self.kind} router has no closed form")

    def learnt_shares(self, columns: Sequence[ColumnData]) -> Tensor:
        """Return p ``(K,)``: the shares of texts under which the weights are posteriors.

        Most kinds learn from every column alike, whatever the number of its rows.

        Args:
            columns: The data of all columns, in column order.
        """
        return torch.full((len(columns),), 1 / len(columns), dtype=torch.float64)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters whose first dimension counts the columns.

        Raises:
            UsageError: If the kind does not say.
        """
        raise UsageError(
            f"a {self.kind} router does not say which of its weights belong to a column",
            expected="its column_parameters, for level 'row'",
            found="none",
            hint="Use --level full.",
        )

    def copy_columns(self, parent: Router, *, keep: Collection[str]) -> None:
        """Take over the parent's weights: those of the columns in `keep` and all shared ones.

        Args:
            parent: A router of the same kind and width.
            keep: Columns that both routers have and whose weights stay as they are.
        """
        names = sorted(keep)
        mine = torch.tensor([self.columns.index(c) for c in names], dtype=torch.int64)
        theirs = torch.tensor([parent.columns.index(c) for c in names], dtype=torch.int64)
        per_column = {id(p) for p in self.column_parameters()}
        with torch.no_grad():
            for own, other in zip(self.parameters(), parent.parameters(), strict=True):
                if id(own) in per_column:
                    own[mine] = other[theirs]
                else:
                    own.copy_(other)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file's tensors."""
        self.load_state_dict(dict(tensors))


class LabelledRouter(Router):
    """A kind with rows for (column, label) pairs, whose number only data or a file tell.

    ``owner`` holds the column of each row, ``(Y,)``, ascending.
    """

    per_label: ClassVar[tuple[str, ...]]
    """Names of the tensors with one row a label."""
    per_column: ClassVar[tuple[str, ...]] = ()
    """Of those with one row a column."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Of those that all columns share."""
    owner: Tensor

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.register_buffer("owner", torch.zeros(0, dtype=torch.int64))
        self._set_owner(self.owner)

    def _set_owner(self, owner: Tensor) -> None:
        """Set each row's column; remember (first row, past the last row) of each column, and runs.

        Numbers rather than masks, so that a forward pass has shapes that are known beforehand.
        """
        ends = torch.bincount(owner, minlength=len(self.columns)).cumsum(0).tolist()
        self.owner, self._spans = owner, tuple(pairwise([0, *ends]))
        self._runs = runs_of(self._spans)

    def replace_rows(self, rows: Mapping[int, Sequence[Tensor]]) -> None:
        """Set the rows of columns, by their index: one tensor for each name in `per_label`."""
        keep = torch.tensor([int(k) not in rows for k in self.owner], dtype=torch.bool)
        owners = [torch.full((len(made[0]),), k) for k, made in rows.items()]
        # A stable order: the same rows stand in the same places, whoever moved last.
        owner, places = torch.sort(torch.cat([self.owner[keep], *owners]), stable=True)
        for n, name in enumerate(self.per_label):
            p = self.get_parameter(name)
            p.data = torch.cat([p[keep], *(made[n] for made in rows.values())]).detach()[places]
        self._set_owner(owner)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return what has one row a column; what counts labels, `copy_columns` takes over."""
        return tuple(self.get_parameter(name) for name in self.per_column)

    def copy_columns(self, parent: Router, *, keep: Collection[str]) -> None:
        """Take over what is shared, and the rows of the columns in `keep`."""
        if not isinstance(parent, type(self)):
            raise TypeError(f"expected a router of kind {self.kind!r}, found {parent.kind!r}")
        names = [parent.columns[int(k)] for k in parent.owner]
        rows = torch.tensor([name in keep for name in names], dtype=torch.bool)
        for name in self.shared:
            getattr(self, name).data = getattr(parent, name).data.clone()
        for name in self.per_label:
            getattr(self, name).data = getattr(parent, name).data[rows]
        for name in self.per_column:
            for column in keep:
                row = getattr(parent, name).data[parent.columns.index(column)]
                getattr(self, name).data[self.columns.index(column)] = row
        owner = [self.columns.index(name) for name in names if name in keep]
        self._set_owner(torch.tensor(owner, dtype=torch.int64))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file, which alone knows the number of labels."""
        for name in (*self.per_label, *self.per_column, *self.shared):
            getattr(self, name).data = tensors[name].clone()
        self._set_owner(tensors["owner"].clone())


class PlainRouter(Router):
    """Any module z → logits as a router of level ``full`` that reads z alone.

    Args:
        module: What a plugin made.
        columns: The columns' names.
    """

    def __init__(self, module: nn.Module, *, columns: tuple[str, ...] = ()) -> None:
        super().__init__(width=0, columns=columns)
        self.module = module

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        logits: Tensor = self.module(z)
        return logits

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Raise: nothing is known of the module.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "level 'row' trains single columns",
            expected="a redhost.Router",
            found=type(self.module).__name__,
            hint="Use --level full.",
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's tensors under its own names, which are those on disk."""
        return self.module.state_dict(*args, **kwargs)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the module's weights from a file's tensors."""
        self.module.load_state_dict(dict(tensors))


def router_tensors(router: BusRouter) -> dict[str, Tensor]:
    """Return what a router's file holds: its weights, and its prior where it has one."""
    tensors = {name: t.contiguous() for name, t in router.state_dict().items()}
    return tensors if router.log_prior is None else {**tensors, PRIOR: router.log_prior}


def load_router(router: Router, tensors: Mapping[str, Tensor]) -> None:
    """Set a router's weights, and its prior, from a file's tensors."""
    router.log_prior = tensors.get(PRIOR)
    router.load_tensors({name: t for name, t in tensors.items() if name != PRIOR})


def as_router(module: nn.Module, *, columns: tuple[str, ...] = ()) -> Router:
    """Return a module as a router: itself, or behind `PlainRouter`."""
    return module if isinstance(module, Router) else PlainRouter(module, columns=columns)
