"""Routing health: does one expert take everything, do they differ, do routes flip?

    collapse             little usage entropy, or experts that get next to no weight on their rows
    no specialisation    experts whose answers are next to the same
    thrashing            rows whose heaviest column is another one than a generation ago
    imbalance            ‖Δ‖ of the loudest expert at home against the quietest's

Source: seed 003, "Expert Specialization vs Collapse"; the numbers are `redhost.mechanisms`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from .composed import Composed
from .mechanisms.health import (
    assignment_flip_rate,
    pairwise_output_distance,
    usage,
    usage_entropy,
)
from .receipt import Health
from .rows import Row

__all__ = ["routing_health"]

COLLAPSED = 0.5
"""Usage entropy below this share of the rows' own is a collapse."""

DEAD = 0.1
"""An expert with less than this share of what its rows would give it is dead."""

ALIKE = 0.1
"""Answers closer than this share of their norm are the same answers."""

THRASHING = 0.2
"""Share of routes that flip from one generation to the next."""

LOUD = 20.0
"""Loudest over quietest expert, at home."""

ROWS, EXPERTS = 256, 32
"""At most so many rows and experts are compared answer by answer."""


def routing_health(
    composed: Composed, h: Tensor, rows: Sequence[Row], *, previous: Composed | None = None
) -> Health:
    """Measure the routes of labelled rows.

    Args:
        composed: The composition.
        h: Features of the rows, ``(N, D)``.
        rows: The rows; `domain` says whose they are.
        previous: The generation before, on the same backbone.
    """
    bus = composed.bus
    with torch.inference_mode():
        z = bus.norm(h)
        alpha = bus.weights(z)
        voices = bus.evidence(z)
        distance = _distance(composed, h[:: max(1, len(h) // ROWS)])
        flips = None if previous is None else _flips(composed, previous, h, alpha, rows)
    owner = composed.oracle_weights(rows)
    experts = len(bus.ids)
    share, fair = usage(alpha), usage(owner) if owner.sum() else None
    entropy = usage_entropy(alpha[:, :experts])
    expected = 1.0 if fair is None else usage_entropy(owner[:, :experts])
    dead = tuple(
        c
        for k, c in enumerate(bus.ids)
        if fair is not None and fair[k] > 0 and share[k] < DEAD * fair[k]
    )
    loudness = {
        c: float(voices[owner[:, k] > 0, k].mean())
        for k, c in enumerate(bus.ids)
        if bool((owner[:, k] > 0).any())
    }
    used = dict(zip(bus.columns, share.tolist(), strict=True))
    found = Health(
        rows=len(rows),
        usage=used,
        entropy=entropy,
        expected_entropy=expected,
        dead=dead,
        distance=distance,
        loudness=loudness,
        flips=flips,
        warnings=(),
    )
    return msgspec.structs.replace(found, warnings=_warnings(found, quiet=_comparable(composed)))


def _comparable(composed: Composed) -> frozenset[str]:
    """Return the experts whose loudness is a norm: those that write to the shared classifier."""
    bus = composed.bus
    return frozenset(i for n, i in enumerate(bus.ids) if n not in bus.own)


def _distance(composed: Composed, h: Tensor) -> float | None:
    """Return how far two experts' probabilities are apart; of some, where there are many."""
    bus = composed.bus
    if len(bus.ids) < 2 or not len(h):  # noqa: PLR2004
        return None
    some = range(0, len(bus.ids), -(-len(bus.ids) // EXPERTS))
    z = bus.norm(h)
    return pairwise_output_distance(torch.stack([bus.alone(h, z, k) for k in some]))


def _flips(
    composed: Composed, previous: Composed, h: Tensor, alpha: Tensor, rows: Sequence[Row]
) -> float | None:
    """Return the share of flipped routes, by the columns' names."""
    chunks = [[c.key for c in x.bus.layout.chunks] for x in (composed, previous)]
    if previous.fingerprint != composed.fingerprint or chunks[0] != chunks[1]:
        return None
    both = set(composed.bus.ids) & set(previous.bus.ids)
    kept = torch.tensor([r.domain in both for r in rows])
    if not kept.any():
        return None
    before = previous.bus.weights(previous.bus.norm(h[kept])).argmax(-1)
    names = sorted({*composed.bus.columns, *previous.bus.columns})
    return assignment_flip_rate(
        _named(before, previous.bus.columns, names),
        _named(alpha[kept].argmax(-1), composed.bus.columns, names),
    )


def _named(columns: Tensor, of: Sequence[str], names: Sequence[str]) -> Tensor:
    place = torch.tensor([names.index(c) for c in of])
    return place[columns]


def _warnings(found: Health, *, quiet: frozenset[str]) -> tuple[str, ...]:
    told = []
    if found.entropy < COLLAPSED * found.expected_entropy:
        most = max(found.usage, key=lambda c: found.usage[c])
        told.append(
            f"collapse: {most!r} takes {found.usage[most]:.0%} of the weight. Try --router "
            "evidence, topk:balance=0.1, or cards with more rows."
        )
    if found.dead:
        told.append(
            f"dead: {', '.join(found.dead)} get next to no weight on their own rows. Check their "
            "cards with 'redhost check', or try --level full."
        )
    if found.distance is not None and found.distance < ALIKE:
        told.append(
            f"no specialisation: two experts' answers differ by {found.distance:.0%} of their "
            "norm. Train them longer, or on data of their own only."
        )
    if found.flips is not None and found.flips > THRASHING:
        told.append(
            f"thrashing: {found.flips:.0%} of the routes flipped since the generation before. Try "
            "--level row, which keeps the other columns, or a closed form (evidence)."
        )
    told += _loud({i: x for i, x in found.loudness.items() if i in quiet})
    return tuple(told)


def _loud(loudness: Mapping[str, float]) -> list[str]:
    if not loudness:
        return []
    most, least = (f(loudness, key=lambda i: loudness[i]) for f in (max, min))
    if loudness[most] <= LOUD * max(loudness[least], 1e-12):
        return []
    return [
        f"imbalance: {most!r} is {loudness[most] / max(loudness[least], 1e-12):.0f} times as loud "
        f"as {least!r}. Train it with more weight decay or a larger off-domain penalty."
    ]
