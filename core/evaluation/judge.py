"""Judge a composition on labelled rows: routing weights and correctness of answers.

Rows are processed in batches: probabilities of 64,000 rows over 20,000 labels would be 5 GB.

For text generation, bits per byte compare models independent of their tokenizers; less is better:

    Σ over tokens of −log2 p(x_t | x_<t)  /  UTF-8 bytes that the tokens represent
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ...registry.errors import CompositionError, PluginError
from ..batching import batched_slices
from ..bus.bus import Bus
from ..model.composed import ComposedModel
from ..model.conformal import Calibration
from ..types import Row

Calibrate = Callable[[Bus, Tensor, Tensor, Tensor, Sequence[Row]], Calibration]
"""Bus, h, p, α and rows → the rows' scores (`core.model.conformal.calibrate`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The scores of a system on N labelled rows.

    Attributes:
        hits: Whether each row was answered correctly, ``(N,)`` of 0.0 and 1.0.
        nats: −log p of each row's next token, ``(N,)``; None unless text is generated.
        error: |ŷ − y| of each row, ``(N,)``; None unless answers are numbers.
    """

    hits: Tensor
    nats: Tensor | None = None
    error: Tensor | None = None


ScoresT = TypeVar("ScoresT", Scores, Calibration)


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationResult(Scores):
    """The result of a composition on N labelled rows.

    Attributes:
        usage: Mean weight of every column, ``(K,)``, float64.
        heaviest: The column with the largest weight, ``(N,)``.
        declined: Which rows are declined, ``(N,)``.
        confidence: The largest output of each row, ``(N,)``; a probability if outputs are labels.
        calibration: The rows' conformal scores, if requested.
    """

    usage: Tensor
    heaviest: Tensor
    declined: Tensor
    confidence: Tensor
    calibration: Calibration | None = None


def judge(
    composed: ComposedModel,
    h: Tensor,
    rows: Sequence[Row],
    *,
    calibrate: Calibrate | None = None,
    cards: bool = False,
) -> EvaluationResult:
    """Answer rows with a composition, as any other text, and score the answers.

    Args:
        composed: The composition.
        h: Features of the rows, ``(N, D)``.
        rows: The rows.
        calibrate: Computes conformal scores from the bus outputs; None for no scores.
        cards: Whether the rows come from cards, which are labelled with their expert's labels only.

    Raises:
        CompositionError: If an output is NaN or infinite.
        PluginError: If a plugin's router has such weights, though it reads no expert's output.
    """
    bus, scores, heaviest, declined, confidence = composed.bus, [], [], [], []
    calibrated = []
    total = torch.zeros(len(bus.columns), dtype=torch.float64)
    with torch.inference_mode():
        for piece in batched_slices(len(rows), cost=_cost(composed)):
            p, alpha = bus(h[piece])
            plugin = type(bus.router).__module__.partition(".")[0]
            # A built-in kind has such weights from a card, whose expert is then left out.
            by_plugin = plugin != "redhost" and not bus.router.reads
            if by_plugin and not alpha.isfinite().all():
                raise PluginError(
                    f"router {composed.router_kind!r} of {plugin!r} gives NaN or infinite weights",
                    hint=f"Choose another --router, or ask the author of {plugin!r}.",
                )
            if not bool(p.isfinite().all() & alpha.isfinite().all()):
                raise CompositionError(
                    f"the composition under router {composed.router_kind!r} does not answer",
                    expected="numbers",
                    found="NaN or infinity",
                )
            # A card's rows are not annotated for labels of other experts in a multi-label task.
            owners = partial(composed.owners, rows[piece])
            answered = composed.bus.annotated(p, owners) if cards else p
            scores.append(score(composed, answered, rows[piece]))
            heaviest.append(alpha.argmax(-1))
            declined.append(composed.declines(h[piece], p, alpha))
            confidence.append(p.amax(-1))
            if calibrate is not None:
                calibrated.append(calibrate(bus, h[piece], p, alpha, rows[piece]))
            total += alpha.double().sum(0)
    all_rows = concat_scores(scores)
    return EvaluationResult(
        hits=all_rows.hits,
        nats=all_rows.nats,
        error=all_rows.error,
        usage=total / max(len(rows), 1),
        heaviest=torch.cat(heaviest),
        declined=torch.cat(declined),
        confidence=torch.cat(confidence),
        calibration=concat_scores(calibrated) if calibrated else None,
    )


def judge_oracle(composed: ComposedModel, h: Tensor, rows: Sequence[Row]) -> Scores:
    """Return the scores of oracle routing: each row's own expert alone; h is ``(N, D)``."""
    bus, scores = composed.bus, []
    with torch.inference_mode():
        for piece in batched_slices(len(rows), cost=_cost(composed)):
            alpha = composed.oracle_weights(rows[piece])
            p = bus.probabilities(h[piece], bus.norm(h[piece]), alpha)
            scores.append(score(composed, p, rows[piece]))
    return concat_scores(scores)


def score(composed: ComposedModel, p: Tensor, rows: Sequence[Row]) -> Scores:
    """Return the scores of an output ``(N, L)`` on rows."""
    head, labels = composed.bus.task.head, composed.bus.labels
    return Scores(
        hits=head.right(p, rows, labels), nats=head.nats(p, rows), error=head.error(p, rows)
    )


def concat_scores(parts: Sequence[ScoresT]) -> ScoresT:
    """Return the concatenated scores of consecutive parts of the rows; None where all have none."""
    names = [f.name for f in fields(parts[0])]
    columns = {n: [t for p in parts if (t := getattr(p, n)) is not None] for n in names}
    return type(parts[0])(**{n: torch.cat(tensors) for n, tensors in columns.items() if tensors})


def _cost(composed: ComposedModel) -> int:
    """Return the memory of a row, in numbers: its labels, or Δ of every expert."""
    bus = composed.bus
    return max(bus.answers, len(bus.ids) * composed.backbone.width)


def bits_per_byte(nats: Tensor, rows: Sequence[Row], sizes: Mapping[str, int]) -> dict[str, float]:
    """Return bits per byte by domain, in sorted order; rows without a domain are not counted.

    Args:
        nats: −log p of each token, ``(N,)``.
        rows: The tokens' rows.
        sizes: Bytes by domain.
    """
    total = dict.fromkeys(sorted({r.domain for r in rows if r.domain is not None}), 0.0)
    for row, value in zip(rows, nats.tolist(), strict=True):
        if row.domain is not None:
            total[row.domain] += value
    return {domain: value / math.log(2) / sizes[domain] for domain, value in total.items()}
