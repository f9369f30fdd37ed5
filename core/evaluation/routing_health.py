"""Routing health: collapse onto one expert, lack of specialisation, changing routes.

    collapse             usage entropy H(u) / log E too far below that of the rows' domains, where u
                         is the mean of the weights; or experts with almost no weight on own rows
    no specialisation    mean over pairs of ‖f_i(x) − f_j(x)‖ / mean ‖f_i(x)‖ is almost 0
    thrashing            rows whose column with the largest weight changed since the last generation
    imbalance            ratio of the largest to the smallest ‖Δ‖, each expert on its own rows

Source: seed 003, "Expert Specialization vs Collapse", whose table names remedies and no measure.
The measures are pure functions of weights ``(N, E)``, outputs ``(E, N, D)`` and assignments
``(N,)`` or ``(N, k)``. With no rows, or no pair of experts, they are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from ..bus.evidence import confidence_of
from ..model.composed import ComposedModel
from ..receipt import Health
from ..types import Row, percent
from .judge import EvaluationResult, judge

COLLAPSED = 0.5
"""Usage entropy below this share of that of the rows' domains counts as collapse."""

DEAD = 0.1
"""An expert is dead if its usage is below this multiple of its share of the rows."""

ALIKE = 0.1
"""Answers that differ by less than this share of their norm count as equal."""

THRASHING = 0.2
"""Share of routes that flip between generations, above which a warning is given."""

DOMINANT = 20.0
"""Ratio of the largest to the smallest ‖Δ‖, each on own rows, above which a warning is given."""

ROWS, EXPERTS = 256, 32
"""Most rows and experts whose answers are compared."""

ANSWERS = 2**24
"""Most probabilities that are compared."""


def routing_health(
    composed: ComposedModel,
    h: Tensor,
    rows: Sequence[Row],
    *,
    previous: ComposedModel | None = None,
    result: EvaluationResult | None = None,
    before: EvaluationResult | None = None,
) -> Health:
    """Measure the routes of labelled rows.

    Args:
        composed: The composition.
        h: Features of the rows, ``(N, D)``.
        rows: The rows; `domain` is the id of a row's own expert.
        previous: The generation before, on the same backbone.
        result: The composition's result on the rows, if already computed.
        before: The result of `previous` on rows whose expert is in both, if already computed.
    """
    bus, experts = composed.bus, len(composed.bus.ids)
    result = result or judge(composed, h, rows)
    owner = composed.owners(rows)
    own_rows = torch.bincount(owner[owner >= 0], minlength=experts).double()
    with torch.inference_mode():
        distance, norms = _distance(composed, h), _output_norms(composed, h, owner)
    share, fair = result.usage, own_rows / own_rows.sum()
    dead = (own_rows > 0) & (share[:experts] < DEAD * fair)
    health = Health(
        rows=len(rows),
        usage=dict(zip(bus.columns, share.tolist(), strict=True)),
        # Without any weight on experts their shares are undefined; all goes to one column, as at 0.
        entropy=usage_entropy(share[None, :experts]) if share[:experts].any() else 0.0,
        expected_entropy=usage_entropy(own_rows[None]) if own_rows.any() else 1.0,
        dead=tuple(i for i, gone in zip(bus.ids, dead.tolist(), strict=True) if gone),
        distance=distance,
        loudness=norms,
        flips=_flips(composed, previous, h, rows, result, before),
        warnings=(),
    )
    # Norms have the same unit only for experts that write to the shared classifier.
    shared = {i: norms[i] for n, i in enumerate(bus.ids) if n not in bus.own and i in norms}
    return msgspec.structs.replace(health, warnings=tuple(_warnings(health, shared)))


def _output_norms(composed: ComposedModel, h: Tensor, owner: Tensor) -> dict[str, float]:
    """Return each expert's mean confidence on its own rows; others are not computed."""
    bus, norms = composed.bus, {}
    for k, (expert_id, expert) in enumerate(zip(bus.ids, bus.ensemble.parts, strict=True)):
        own_rows = h[owner == k]
        if len(own_rows):
            delta = bus.ensemble.delta(bus.norm(own_rows), k)
            norms[expert_id] = float(
                confidence_of(expert, delta, bus.ensemble.readout_factor).mean()
            )
    return norms


def _distance(composed: ComposedModel, h: Tensor) -> float | None:
    """Return the distance between experts' probabilities; on a sample if there are many."""
    bus = composed.bus
    if len(bus.ids) < 2 or not len(h):  # noqa: PLR2004
        return None
    sample = range(0, len(bus.ids), -(-len(bus.ids) // EXPERTS))
    rows = max(1, min(ROWS, ANSWERS // (len(sample) * bus.answers)))
    h = h[:: -(-len(h) // rows)]
    z = bus.norm(h)
    return pairwise_output_distance(torch.stack([bus.alone(h, z, k) for k in sample]))


def _flips(
    composed: ComposedModel,
    previous: ComposedModel | None,
    h: Tensor,
    rows: Sequence[Row],
    result: EvaluationResult,
    before: EvaluationResult | None,
) -> float | None:
    """Return the share of flipped routes, comparing columns by name; None if not comparable."""
    if previous is None or previous.fingerprint != composed.fingerprint:
        return None
    segments = [[c.key for c in x.bus.layout.segments] for x in (composed, previous)]
    both = set(composed.bus.ids) & set(previous.bus.ids)
    in_both = torch.tensor([r.domain in both for r in rows])
    if segments[0] != segments[1] or not in_both.any():
        return None
    if before is None:
        before = judge(previous, h[in_both], [r for r in rows if r.domain in both])
    # Number the columns consistently across both compositions.
    columns = dict.fromkeys((*composed.bus.columns, *previous.bus.columns))
    number = {c: n for n, c in enumerate(columns)}
    old, new = (torch.tensor([number[c] for c in x.bus.columns]) for x in (previous, composed))
    return assignment_flip_rate(old[before.heaviest], new[result.heaviest[in_both]])


def _warnings(health: Health, norms: Mapping[str, float]) -> Iterator[str]:
    """Yield problems with suggestions; norms are of experts whose ‖Δ‖ can be compared."""
    if health.entropy < COLLAPSED * health.expected_entropy:
        most = max(health.usage, key=lambda c: health.usage[c])
        yield (
            f"collapse: {most!r} takes {percent(health.usage[most])} of the weight. Try --router "
            "evidence, topk:balance=0.1, or cards with more rows."
        )
    if health.dead:
        yield (
            f"dead: {', '.join(health.dead)} get next to no weight on their own rows. Check their "
            "cards with 'redhost check', or try --level full."
        )
    if health.distance is not None and health.distance < ALIKE:
        yield (
            "no specialisation: two experts' answers differ by "
            f"{percent(health.distance)} of their norm. Train them longer, or on data of their own "
            "only."
        )
    if health.flips is not None and health.flips > THRASHING:
        yield (
            f"thrashing: {percent(health.flips)} of the routes flipped since the generation "
            "before. Try cards with more rows, a closed form (evidence), or --level row."
        )
    most, least = (f(norms, key=lambda i: norms[i], default="") for f in (max, min))
    ratio = norms[most] / max(norms[least], 1e-12) if norms else 0.0
    if ratio > DOMINANT:
        yield (
            f"imbalance: {most!r} is {ratio:.0f} times as loud "
            f"as {least!r}. Train it with more weight decay or a larger off-domain penalty."
        )


def usage(weights: Tensor) -> Tensor:
    """Return the share of each expert, ``(E,)`` in float64, summing to 1.

    Args:
        weights: Each row's weights, ``(N, E)``; at least 0, on any scale.

    Raises:
        ValueError: If the shape is different.
    """
    if weights.dim() != 2:  # noqa: PLR2004
        raise ValueError(f"usage takes weights (N, E), found shape {tuple(weights.shape)}")
    total = weights.detach().double().sum(dim=0)
    return total / total.sum()


def usage_entropy(weights: Tensor) -> float:
    """Return H(usage) / log E: 1 for equal shares, 0 at collapse; 1 for a single expert.

    Args:
        weights: ``(N, E)``.
    """
    share = usage(weights)
    entropy = -float(torch.special.xlogy(share, share).sum())
    if math.isnan(entropy) or len(share) == 1:
        return entropy + 1
    return min(1.0, max(0.0, entropy / math.log(len(share))))  # rounding can leave [0, 1]


def pairwise_output_distance(outputs: Tensor) -> float:
    """Return the mean distance of two experts' answers to a row, relative to an answer's norm.

    0 for copies, √2 for orthogonal answers of equal norm, 2 for opposite ones.

    Args:
        outputs: Every expert's answer to every row, ``(E, N, D)``.

    Raises:
        ValueError: If the shape is different.
    """
    if outputs.dim() != 3:  # noqa: PLR2004
        raise ValueError(f"outputs are (E, N, D), found shape {tuple(outputs.shape)}")
    by_row = outputs.detach().double().transpose(0, 1)  # (N, E, D)
    one, other = torch.triu_indices(len(outputs), len(outputs), offset=1)
    exact = "donot_use_mm_for_euclid_dist"  # distance 0 for copies, without D numbers for each pair
    distance = torch.cdist(by_row, by_row, compute_mode=exact)[:, one, other].mean()
    # Answers that are all 0 are copies of each other.
    return float(distance / by_row.norm(dim=-1).mean()) if distance else 0.0


def assignment_flip_rate(before: Tensor, after: Tensor) -> float:
    """Return the share of assignments that changed: 0 for none, 1 for all.

    Args:
        before: The experts of each row, ``(N,)`` or ``(N, k)``; the order in a row is irrelevant.
        after: The later experts of the same rows, in the same shape.

    Raises:
        ValueError: If the shapes differ.
    """
    if before.shape != after.shape:
        raise ValueError(
            f"assignments of shape {tuple(before.shape)} are compared with their like, "
            f"found shape {tuple(after.shape)}"
        )
    old, new = (a.unsqueeze(1) if a.dim() == 1 else a for a in (before, after))
    unmoved = (old.unsqueeze(2) == new.unsqueeze(1)).any(dim=2)  # (N, k)
    return 1 - float(unmoved.double().mean())
