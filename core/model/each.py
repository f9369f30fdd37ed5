"""Every expert's own answer, beside the composed one: the same pass of the backbone, no router.

    p_i(y|x)    over the labels that expert i answers with: softmax(Δ_i^label(z) / T_i), or
                softmax(W_c (h + Δ_i(z))) where it shares the backbone's classifier

T_i was fitted by its author on rows that it was not trained on, so p_i is a calibrated probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..bus.bus import Bus
from .conformal import Calibration, own_familiarity


@dataclass(frozen=True, kw_only=True)
class ExpertAnswer:
    """What one expert alone answers to a text.

    Attributes:
        label: Its most probable label; a number as text.
        probability: p_i of it, 0–1; None for a number.
        value: The number, where numbers are answered.
        declined: Whether the text is less like the expert's own than the share that a composition
            with `decline` gives up; the label is its answer all the same.
    """

    label: str
    probability: float | None
    value: float | None = None
    declined: bool = False


def answers_by_expert(
    bus: Bus, h: Tensor, *, calibration: Calibration | None, share: float | None
) -> list[dict[str, ExpertAnswer]]:
    """Return what each expert alone answers to N texts, by id.

    Args:
        bus: The bus.
        h: Features ``(N, D)`` of which every part is known.
        calibration: Scores of gate rows, if there are.
        share: ε: how many of its own texts an expert may decline, 0–1; None for none.
    """
    z, limits = bus.norm(h), None
    if share and calibration is not None and calibration.own is not None:
        limits = calibration.thresholds(
            calibration.own, share, groups=len(bus.ids), group=calibration.owner
        ).tolist()
    found = list[list[ExpertAnswer]]()
    for column in range(len(bus.ids)):
        p = bus.own_answer(h, z, column)
        declined = torch.zeros(len(h), dtype=torch.bool)
        if limits is not None:
            declined = own_familiarity(bus, z, p, column) < limits[column]
        read = bus.task.head.read(p, bus.answered_by(column))
        found.append(
            [
                ExpertAnswer(label=a.label, probability=a.probability, value=a.value, declined=no)
                for a, no in zip(read, declined.tolist(), strict=True)
            ]
        )
    return [dict(zip(bus.ids, some, strict=True)) for some in zip(*found, strict=True)]
