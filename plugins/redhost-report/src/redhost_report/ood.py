"""Out-of-distribution input: how often texts outside every expert's domain are declined."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from redhost.core.bus.bus import BACKBONE
from redhost.core.model.composed import ComposedModel
from redhost.core.model.conformal import familiarity
from redhost.core.types import Encode, Row
from redhost.registry.errors import UsageError


class OODReport(msgspec.Struct, frozen=True, kw_only=True):
    """How well a composition separates outside texts from the experts' own input.

    A text is declined if its familiarity is below the composition's threshold (`decline`). Without
    a threshold, it is declined if the column with the largest weight is the backbone's.

    Attributes:
        declined: Share of outside texts that are declined, 0–1.
        declined_inside: The same for the experts' own rows, which should not be declined.
        auroc: Probability that an outside text is less familiar than a row of the experts (without
            a threshold: has more weight on the backbone column), ties counting half.
        rows: Number of outside texts.
    """

    declined: float
    declined_inside: float
    auroc: float
    rows: int


def evaluate_ood(
    composed: ComposedModel, outside: Sequence[str], inside: Sequence[Row], *, encode: Encode
) -> OODReport:
    """Compare the shares that are declined, of outside texts and of the experts' own rows.

    Args:
        composed: The composition.
        outside: Texts from a source that no expert and no background card uses.
        inside: Rows of the experts' domains.
        encode: Texts → h.

    Raises:
        UsageError: If the composition has no way to decline.
    """
    measure = _unfamiliar if composed.decline_thresholds is not None else _left
    if measure is _left and BACKBONE not in composed.bus.columns:
        raise UsageError(
            "this composition cannot decline",
            expected="a backbone column, or a share to decline",
            found="a backbone without a background card",
            hint="Run 'redhost recompose --decline 5%'.",
        )
    with torch.inference_mode():
        declined, others = measure(composed, encode(outside))
        declined_inside, own = measure(composed, encode([r.text for r in inside]))
    return OODReport(
        declined=float(declined.double().mean()),
        declined_inside=float(declined_inside.double().mean()),
        auroc=auroc(others, own),
        rows=len(outside),
    )


def auroc(positive: Tensor, negative: Tensor) -> float:
    """Return P(positive > negative) + ½ P(positive = negative), from ranks.

    Args:
        positive: Scores ``(P,)``.
        negative: Scores ``(N,)``.
    """
    ordered = negative.double().sort().values
    scores = positive.double()
    below = torch.searchsorted(ordered, scores, right=False).double()
    up_to = torch.searchsorted(ordered, scores, right=True).double()
    return float((below + up_to).mean() / 2 / len(negative))


def _unfamiliar(composed: ComposedModel, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows are declined ``(N,)`` and how unfamiliar they are, for h ``(N, D)``."""
    p, alpha = composed.bus(h)
    return composed.declines(h, p, alpha), -familiarity(composed.bus, h, p)


def _left(composed: ComposedModel, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows have most weight on `backbone` ``(N,)``, and its weight; h ``(N, D)``."""
    alpha = composed.bus.weights(composed.bus.norm(h))
    column = composed.bus.columns.index(BACKBONE)
    return alpha.argmax(-1) == column, alpha[:, column]
