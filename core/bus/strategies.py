"""The three passes that sum the experts' outputs, and the choice between them.

dense      all experts, stacked: one product for all U and one for all V
grouped    only experts with a weight on some row, each on its own rows: an idle expert of any form
           takes no computation, and no memory where its weights are loaded lazily
gathered   only experts with a weight, by gathering their rows of the stack: no data leaves the
           device, and `torch.compile` sees one graph

A router that gives weights to k columns needs B · k of the B · E outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .experts import Expert, LowRank

ForwardStrategy = Literal["dense", "gathered", "grouped"]
"""How the experts are summed."""

SPARSE_THRESHOLD = 4
"""Experts per column with a weight, above which computing only those is the faster pass."""


@dataclass(frozen=True, eq=False)
class ExpertOutput:
    """Δ of one expert on some rows.

    Attributes:
        column: Its column.
        rows: The rows, ``(n,)``; None for all.
        delta: Δ of these rows, ``(n, out)``.
    """

    column: int
    rows: Tensor | None
    delta: Tensor


ExpertOutputs = tuple[ExpertOutput, ...]


def active_columns(weights: Tensor) -> Iterator[tuple[int, Tensor | None]]:
    """Yield every column that has a weight on some row, with the rows ``(n,)`` where it has one.

    Args:
        weights: α, or a mask, ``(B, K)``; exactly zero is no weight.

    Yields:
        Columns in order; for a batch of one row, None in place of the rows.
    """
    if len(weights) == 1:  # served texts come one by one: an index by rows would cost a copy of z
        for column in weights[0].nonzero().flatten().tolist():
            yield column, None
        return
    # Transposed, so that entries come by column, as one pass for each expert needs them.
    columns, rows = weights.T.nonzero(as_tuple=True)
    names, counts = torch.unique_consecutive(columns, return_counts=True)
    yield from zip(names.tolist(), torch.split(rows, counts.tolist()), strict=True)


def concat_outputs(outputs: Sequence[ExpertOutput], batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs as one table: rows ``(P,)``, columns ``(P,)`` and Δ ``(P, out)``.

    The table lets one operation replace one for each expert; all Δ must have the same width.

    Args:
        outputs: Not empty.
        batch: B, the number of rows if an output's `rows` is None.
    """
    # On the device of the outputs: an index from elsewhere would be copied each time.
    every = torch.arange(batch, device=outputs[0].delta.device)
    rows = [every if o.rows is None else o.rows for o in outputs]
    columns = [every.new_full((len(o.delta),), o.column) for o in outputs]
    return torch.cat(rows), torch.cat(columns), torch.cat([o.delta for o in outputs])


def choose_strategy(
    experts: Collection[Expert], *, chosen: int | None, queries: bool, classifier: Tensor | None
) -> ForwardStrategy:
    """Return the pass that suits a composition.

    Args:
        experts: The experts.
        chosen: How many columns have a weight in a row; None for all.
        queries: Whether the router queries experts before it decides.
        classifier: W_c ``(C, D)``, whose device decides.
    """
    if chosen is None or len(experts) <= SPARSE_THRESHOLD * chosen:
        return "dense"
    # Only these have one stack of U and V to gather from.
    alike = all(isinstance(e, LowRank) and e.space != "labels" for e in experts)
    # On a GPU each small product of `grouped` would be a launch of its own.
    on_device = classifier is not None and classifier.device.type != "cpu"
    return "gathered" if on_device and alike and not queries else "grouped"
