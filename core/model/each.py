"""Each expert's own answer, besides the composed one: same pass of the backbone, no router.

    p_i(y|x)    over the labels of expert i: softmax(Δ_i^label(z) / T_i), or
                softmax(W_c (h + Δ_i(z))) if it shares the backbone's classifier; for label sets
                and spans with sigmoid in place of softmax, and the expert's own thresholds

The author fitted T_i on rows that were not trained on, so p_i is a calibrated probability.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from torch import Tensor

from ..bus.bus import Bus
from ..bus.unit import TextAnswers
from .conformal import Calibration, own_familiarities


class ExpertAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one expert alone to a text.

    Attributes:
        label: Its most probable label, or its label set, or spans; a number as text.
        probability: p_i of the label, 0–1; None for a number.
        value: The number, for regression.
        declined: Whether the text is less familiar to the expert than the share of its own texts
            that `decline` gives up. The label is the expert's answer in any case.
    """

    label: str
    probability: float | None
    value: float | None = None
    declined: bool = False


def answers_by_expert(
    bus: Bus,
    h: Tensor,
    *,
    calibration: Calibration | None,
    share: float | None,
    texts: TextAnswers,
) -> list[dict[str, ExpertAnswer]]:
    """Return each expert's own answers to N texts, by id.

    Args:
        bus: The bus.
        h: Features ``(N, D)`` without unknown segments; for spans, those of all words.
        calibration: Scores of gate rows, if any.
        share: ε: the share of its own texts that an expert may decline, 0–1; None for none.
        texts: The texts, whose rows' outputs it reads.
    """
    z = bus.norm(h)
    limits = None if calibration is None or not share else calibration.own_thresholds(share, bus)
    familiarity = own_familiarities(bus, z) if limits is not None else None
    by_column: dict[int, list[ExpertAnswer]] = {}
    for columns, answers in bus.own_answers(h, z):
        for n, (column, read) in enumerate(
            zip(columns, _read(bus, columns, answers, texts), strict=True)
        ):
            if limits is not None and familiarity is not None:
                declined = (familiarity(answers[n], column) < limits[column]).tolist()
                pairs = zip(read, declined, strict=True)
                read = [msgspec.structs.replace(a, declined=no) for a, no in pairs]  # noqa: PLW2901
            by_column[column] = read
    ordered = [by_column[k] for k in range(len(bus.ids))]
    return [dict(zip(bus.ids, row, strict=True)) for row in zip(*ordered, strict=True)]


def _read(
    bus: Bus, columns: Sequence[int], p: Tensor, texts: TextAnswers
) -> Iterator[list[ExpertAnswer]]:
    """Yield the readable answers of some experts, one at a time, from p ``(n, B, L_i)``."""
    heads, labels = map(bus.head_of, columns), [bus.answered_by(column) for column in columns]
    for read in texts.by_column([*heads], p, labels):
        yield [ExpertAnswer(label=a.label, probability=a.probability, value=a.value) for a in read]
