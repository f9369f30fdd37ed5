"""What every router kind shares: columns by name, and rows that belong to one column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..progress import Progress
from ..statistics import Statistics

if TYPE_CHECKING:
    from ..sketch import Sketch

__all__ = ["ColumnData", "Judged", "Router", "spans"]


@dataclass(frozen=True, eq=False)
class Judged:
    """Rows with the likelihood of their answers: z ``(N, D)`` and p_k(y|x) ``(N, K)``.

    For a kind that `sketches` also what the residual sum makes of them.
    """

    z: Tensor
    likelihood: Tensor
    sketch: Sketch | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnData:
    """What a router may learn of one column.

    Attributes:
        column: The expert's id, or the backbone column's name.
        z: Rows of the column's domain, ``(N, D)``; drawn from `statistics` where the card
            ships no rows.
        statistics: The sums of the domain.
        evidence: The experts' evidence on the rows, ``(N, K)``; None before there are experts.
        outputs: What the experts' outputs look like on the rows, ``(N, K, S)``.
        likelihood: p_k(y|x) of each row's own answer by each column alone, ``(N, K)``; None
            where the card does not tell texts and answers, or no router asked for it.
        sketch: What the residual sum makes of the rows' answers, for a kind that `sketches`.
        gate: The same for rows the router does not learn from.
        hear: A mask ``(N, K)`` of who is asked about which row → their evidence ``(N, K)``, zero
            elsewhere, for a kind that asks; None before there are experts.
    """

    column: str
    z: Tensor
    statistics: Statistics
    evidence: Tensor | None = None
    outputs: Tensor | None = None
    likelihood: Tensor | None = None
    sketch: Sketch | None = None
    gate: Judged | None = None
    hear: Callable[[Tensor], Tensor] | None = None


class Router(nn.Module):
    """The gate: z → logits, one for each column. The only thing `recompose` trains.

    A kind with a closed form implements `solve`; the others are trained by gradient. Parameters
    named by `column_parameters` have one row for each column, which is what level `row` moves. A
    kind that `reads_evidence` is called with e(z) ``(B, K)`` as a second argument, one that
    `reads_outputs` with the look of the experts' outputs ``(B, K, S)`` (`core.evidence`); one
    that `reads_answers` learns from how well each column answers the fit rows, and one that
    `sketches` from what their residual sum would. A weight of exactly zero is written as a logit
    of −∞, and a kind that writes all but a few so says how many
    it leaves in `chosen`. One that `asks` hears only the experts of its choice, in `listen`.
    `output` says how the bus combines by its weights: the residual sum, or the mixture
    Σ α_k p_k(y|x).

    Args:
        width: D, the width of z.
        columns: The columns' names, K of them.
        seed: Where random initial weights come from.
    """

    kind: ClassVar[str]
    closed_form: ClassVar[bool] = False
    reads_evidence: ClassVar[bool] = False
    reads_outputs: ClassVar[bool] = False
    reads_answers: ClassVar[bool] = False
    sketches: ClassVar[bool] = False
    asks: ClassVar[bool] = False
    output: ClassVar[Literal["mixture", "residual"]] = "residual"
    options: ClassVar[Mapping[str, type[int] | type[float]]] = {}

    def __init__(self, *, width: int, columns: tuple[str, ...], seed: int = 0) -> None:
        super().__init__()
        self.width, self.columns, self.seed = width, columns, seed
        self.chosen: int | None = None

    def forward(self, z: Tensor, evidence: Tensor | None = None) -> Tensor:
        """Return logits ``(B, K)`` for z ``(B, D)``."""
        raise NotImplementedError

    def listen(self, z: Tensor, hear: Callable[[Tensor], Tensor]) -> Tensor:
        """Return logits ``(B, K)`` of a kind that asks.

        Args:
            z: Bus vectors ``(B, D)``.
            hear: A mask ``(B, K)`` of who is asked → their evidence ``(B, K)``, zero elsewhere.
        """
        raise NotImplementedError(f"a {self.kind} router asks nobody")

    def prepare(self, columns: Sequence[ColumnData]) -> None:
        """Look at the data once before training by gradient; most kinds need not."""

    def training_logits(
        self, z: Tensor, heard: Tensor | None, *, generator: torch.Generator
    ) -> Tensor:
        """Return the logits that are trained ``(B, K)``: before anything is cut, with any noise.

        Args:
            z: Bus vectors ``(B, D)``.
            heard: What the kind reads beside z.
            generator: Where noise comes from.
        """
        logits: Tensor = self(z, heard)
        return logits

    def finish(
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

    def adopt(self, parent: Router, *, keep: Collection[str]) -> None:
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


def spans(owner: Tensor, columns: int) -> tuple[tuple[int, int], ...]:
    """Return (first row, past the last row) of each column, where rows are sorted by column.

    Numbers rather than masks, so that a forward pass has shapes that are known beforehand.

    Args:
        owner: Each row's column, ascending, ``(Y,)``.
        columns: K.
    """
    ends = torch.bincount(owner, minlength=columns).cumsum(0).tolist()
    return tuple(pairwise([0, *ends]))
