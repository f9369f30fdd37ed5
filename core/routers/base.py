"""The base of every router kind: named columns, and rows that belong to one column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..bus.bus import Bus
from ..bus.signals import BusRouter, RouterSignals
from ..receipt import MinimaxReport
from ..types import Progress
from .domain_statistics import Statistics
from .label_products import runs_of

PRIOR = "log_prior"
"""The name of the prior in a file of tensors; no weight of a router may have it."""


class TruncatedOutputs(Protocol):
    """The bus outputs for rows, reduced to what a router learns from (`Router.truncate`)."""

    def alone(self) -> Tensor:
        """Return log p_k(y|x) of each row's answer by each column alone, ``(N, K)``."""
        ...


@dataclass(frozen=True, eq=False)
class AnswerLikelihoods:
    """Rows with the likelihood of their answers: z ``(N, D)`` and p_k(y|x) ``(N, K)``.

    For a kind that truncates the outputs, also the truncated ones.
    """

    z: Tensor
    likelihood: Tensor
    truncated: TruncatedOutputs | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnData:
    """The training data of one column.

    Attributes:
        column: The expert's id, or the backbone column's name.
        z: Rows of the column's domain, ``(N, D)``; drawn from `statistics` where the card
            ships no rows.
        statistics: The sums of the domain.
        labels: The label of each row, as in the statistics; empty where rows were drawn.
        signals: The router's other inputs for these rows; None while there are no experts.
        likelihood: p_k(y|x) of each row's own answer by each column alone, ``(N, K)``; None
            where the card has no texts with answers, or the router does not read answers.
        truncated: The truncated bus outputs of the rows, if the router learns from them.
        gate: The same for held-out rows, which the router does not learn from.
    """

    column: str
    z: Tensor
    statistics: Statistics
    labels: tuple[str, ...] = ()
    signals: RouterSignals | None = None
    likelihood: Tensor | None = None
    truncated: TruncatedOutputs | None = None
    gate: AnswerLikelihoods | None = None


class Router(BusRouter):
    """The gating network: z → one logit for each column. The only thing `recompose` trains.

    A kind with a closed form implements `solve`; the others are trained by gradient. Parameters
    returned by `column_parameters` have one row for each column; level `row` moves only these. A
    kind declares in `reads` its inputs in addition to z (`core.bus.signals`). A logit of −∞ gives a
    weight of exactly zero. A kind that gives all but a few columns this logit declares in `chosen`
    how many remain. `output` determines how the bus combines the experts with the weights.

    Args:
        width: D, the width of z.
        columns: The columns' names, K of them.
        seed: The seed of random initial weights.
    """

    kind: ClassVar[str]
    closed_form: ClassVar[bool] = False
    options: ClassVar[Mapping[str, type[int] | type[float]]] = {}
    minimax_report: MinimaxReport | None = None
    """How the last minimax game ended; None if the kind plays none, or has not yet."""

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__()
        self.width, self.columns, self.seed = width, columns, seed

    def prepare(self, columns: Sequence[ColumnData]) -> None:
        """Compute statistics of the data before training by gradient; most kinds need none."""

    def training_logits(
        self, z: Tensor, signals: RouterSignals | None, *, generator: torch.Generator
    ) -> Tensor:
        """Return the logits used in training ``(B, K)``: before any top-k cut, with any noise.

        Args:
            z: Bus vectors ``(B, D)``.
            signals: The kind's other inputs.
            generator: The source of noise.
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
        """Train further after the cross-entropy to the columns; most kinds do nothing here."""

    def truncate(self, bus: Bus, h: Tensor, z: Tensor, target: Tensor) -> TruncatedOutputs | None:
        """Return what to learn from rows besides p_k(y|x); None, as for most kinds, if nothing.

        Called in training, with the bus to be routed, for a kind that reads `ANSWERS`.

        Args:
            bus: The experts.
            h: Features ``(N, D)``, or h̃.
            z: Their bus vectors.
            target: The rows' answers, by number, ``(N,)``.
        """
        return None

    def penalty(self, logits: Tensor, weight: Tensor) -> Tensor:
        """Return a penalty added to the loss, for logits ``(B, K)`` of rows of weight ``(B,)``."""
        return logits.new_zeros(())

    def solve(self, columns: Sequence[ColumnData], *, only: Collection[str] | None = None) -> None:
        """Set the weights in closed form.

        Args:
            columns: The data of all columns, in column order.
            only: For level `row`, the columns that may move; all others stay bitwise identical.
        """
        raise NotImplementedError(f"a {self.kind} router has no closed form")

    def learnt_shares(self, columns: Sequence[ColumnData]) -> Tensor:
        """Return p ``(K,)``: the shares of texts under which the weights are posteriors.

        Most kinds weight every column equally in training, whatever the number of its rows.

        Args:
            columns: The data of all columns, in column order.
        """
        return torch.full((len(columns),), 1 / len(columns), dtype=torch.float64)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters whose first dimension is K.

        Raises:
            UsageError: If the kind does not define any.
        """
        raise UsageError(
            f"a {self.kind} router does not say which of its weights belong to a column",
            expected="its column_parameters, for level 'row'",
            found="none",
            hint="Use --level full.",
        )

    def copy_columns(self, parent: Router, *, keep: Collection[str]) -> None:
        """Copy the parent's weights: those of the columns in `keep` and all shared ones.

        Args:
            parent: A router of the same kind and width.
            keep: Columns of both routers whose weights do not change.
        """
        names = sorted(keep)
        mine = torch.tensor([self.columns.index(c) for c in names], dtype=torch.int64)
        theirs = torch.tensor([parent.columns.index(c) for c in names], dtype=torch.int64)
        per_column = {id(p) for p in self.column_parameters()}
        with torch.no_grad():
            for parameter, other in zip(self.parameters(), parent.parameters(), strict=True):
                if id(parameter) in per_column:
                    parameter[mine] = other[theirs]
                else:
                    parameter.copy_(other)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights from a file's tensors."""
        self.load_state_dict(dict(tensors))


class LabelledRouter(Router):
    """A kind with one row of weights per (column, label), sized by its data or by its file.

    ``owner`` holds the column of each row, ``(Y,)``, ascending.
    """

    per_label: ClassVar[tuple[str, ...]]
    """Names of the tensors with one row per label."""
    per_column: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors with one row per column."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Names of the tensors that all columns share."""
    owner: Tensor

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(width=width, columns=columns, seed=seed)
        self.register_buffer("owner", torch.zeros(0, dtype=torch.int64))
        self._set_owner(self.owner)

    def _set_owner(self, owner: Tensor) -> None:
        """Set each row's column; store the range of rows of each column, and the runs.

        Ranges rather than masks, so that the shapes in a forward pass are static.
        """
        ends = torch.bincount(owner, minlength=len(self.columns)).cumsum(0).tolist()
        self.owner, self._spans = owner, tuple(pairwise([0, *ends]))
        self._runs = runs_of(self._spans)

    def replace_rows(self, rows: Mapping[str, Sequence[Tensor]]) -> None:
        """Set the rows of columns: one tensor for each name in `per_label`."""
        index = self.columns.index
        stay = [self.columns[int(k)] not in rows for k in self.owner]
        keep = torch.tensor(stay, dtype=torch.bool)
        owners = [torch.full((len(tensors[0]),), index(c)) for c, tensors in rows.items()]
        # A stable sort: the order of rows does not depend on which column was set last.
        owner, places = torch.sort(torch.cat([self.owner[keep], *owners]), stable=True)
        for n, name in enumerate(self.per_label):
            p = self.get_parameter(name)
            p.data = torch.cat([p[keep], *(tensors[n] for tensors in rows.values())]).detach()[
                places
            ]
        self._set_owner(owner)

    def column_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the tensors with one row per column; `copy_columns` handles rows per label."""
        return tuple(self.get_parameter(name) for name in self.per_column)

    def copy_columns(self, parent: Router, *, keep: Collection[str]) -> None:
        """Copy the shared tensors, and the rows of the columns in `keep`."""
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
        """Set the weights from a file, which determines the number of labels."""
        for name in (*self.per_label, *self.per_column, *self.shared):
            getattr(self, name).data = tensors[name].clone()
        self._set_owner(tensors["owner"].clone())


class PlainRouter(Router):
    """Any module z → logits as a router that reads z alone and has level ``full`` only.

    Args:
        module: The module that a plugin made.
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
        """Raise: the structure of the module is unknown.

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
        """Return the module's tensors under its own names, as in the file."""
        return self.module.state_dict(*args, **kwargs)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the module's weights from a file's tensors."""
        self.module.load_state_dict(dict(tensors))


def router_tensors(router: BusRouter) -> dict[str, Tensor]:
    """Return the contents of a router's file: its weights, and its prior if it has one."""
    tensors = {name: t.contiguous() for name, t in router.state_dict().items()}
    return tensors if router.log_prior is None else {**tensors, PRIOR: router.log_prior}


def load_router(router: Router, tensors: Mapping[str, Tensor]) -> None:
    """Set a router's weights, and its prior, from a file's tensors."""
    router.log_prior = tensors.get(PRIOR)
    router.load_tensors({name: t for name, t in tensors.items() if name != PRIOR})


def as_router(module: nn.Module, *, columns: tuple[str, ...] = ()) -> Router:
    """Return a router unchanged; wrap any other module in `PlainRouter`."""
    return module if isinstance(module, Router) else PlainRouter(module, columns=columns)
