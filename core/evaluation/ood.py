"""Unknown input: how often the router declines texts of no expert's domain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..bus.bus import BACKBONE
from ..model.composed import ComposedModel
from ..types import Encode, Row


class OODReport(msgspec.Struct, frozen=True, kw_only=True):
    """How well the backbone column separates outside texts from the experts' own input.

    Attributes:
        declined: Share of outside texts whose heaviest column is the backbone's, 0–1.
        declined_inside: The same for the experts' own rows, which should not be declined.
        auroc: Probability that an outside text has more weight on the backbone column than a
            row of the experts', ties counting half.
        rows: Outside texts.
    """

    declined: float
    declined_inside: float
    auroc: float
    rows: int


def evaluate_ood(
    composed: ComposedModel, outside: Sequence[str], inside: Sequence[Row], *, encode: Encode
) -> OODReport:
    """Compare the backbone column's weight on outside texts and on the experts' own rows.

    Args:
        composed: The composition.
        outside: Texts of a source that no expert and no background card comes from.
        inside: Rows of the experts' domains.
        encode: Texts → h.

    Raises:
        UsageError: If the composition has no backbone column to decline with.
    """
    if BACKBONE not in composed.bus.columns:
        raise UsageError(
            "this composition cannot decline",
            expected="a backbone column",
            found="a backbone without a background card",
        )
    others = _weights(composed, outside, encode)
    own = _weights(composed, [r.text for r in inside], encode)
    column = composed.bus.columns.index(BACKBONE)
    return OODReport(
        declined=float((others.argmax(-1) == column).double().mean()),
        declined_inside=float((own.argmax(-1) == column).double().mean()),
        auroc=auroc(others[:, column], own[:, column]),
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


def _weights(composed: ComposedModel, texts: Sequence[str], encode: Encode) -> Tensor:
    with torch.inference_mode():
        return composed.bus.weights(composed.bus.norm(encode(texts)))
