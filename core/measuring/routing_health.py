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

from ..answering.composed import Composed
from ..evidence import voice_of
from ..mechanisms.health import assignment_flip_rate, pairwise_output_distance, usage_entropy
from ..receipt import Health
from ..rows import Row
from .judge import Judged, judge

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

ANSWERS = 2**24
"""At most so many probabilities are compared."""


def routing_health(
    composed: Composed,
    h: Tensor,
    rows: Sequence[Row],
    *,
    previous: Composed | None = None,
    judged: Judged | None = None,
    before: Judged | None = None,
) -> Health:
    """Measure the routes of labelled rows.

    Args:
        composed: The composition.
        h: Features of the rows, ``(N, D)``.
        rows: The rows; `domain` says whose they are.
        previous: The generation before, on the same backbone.
        judged: What the composition did with the rows, where that is known.
        before: What `previous` did with those whose expert both have, likewise.
    """
    bus, experts = composed.bus, len(composed.bus.ids)
    judged = judged or judge(composed, h, rows)
    owner = composed.owners(rows)
    at_home = torch.bincount(owner[owner >= 0], minlength=experts).double()
    with torch.inference_mode():
        distance = _distance(composed, h)
        loudness = _loudness(composed, h, owner)
    share, fair = judged.usage, at_home / at_home.sum()
    dead = (at_home > 0) & (share[:experts] < DEAD * fair)
    found = Health(
        rows=len(rows),
        usage=dict(zip(bus.columns, share.tolist(), strict=True)),
        entropy=usage_entropy(share[None, :experts]),
        expected_entropy=usage_entropy(at_home[None]) if at_home.any() else 1.0,
        dead=tuple(i for i, gone in zip(bus.ids, dead.tolist(), strict=True) if gone),
        distance=distance,
        loudness=loudness,
        flips=_flips(composed, previous, h, rows, judged, before),
        warnings=(),
    )
    return msgspec.structs.replace(found, warnings=_warnings(found, quiet=_comparable(composed)))


def _loudness(composed: Composed, h: Tensor, owner: Tensor) -> dict[str, float]:
    """Return each expert's mean voice on its own rows; nobody is asked about others'."""
    bus, found = composed.bus, {}
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner[owner >= 0], minlength=len(bus.ids)).tolist()
    parts = torch.split(order[int((owner < 0).sum()) :], counts)
    for k, mine in enumerate(parts):
        if len(mine):
            delta = bus.delta(bus.norm(h[mine]), k)
            found[bus.ids[k]] = float(voice_of(bus.parts()[k], delta, bus.ensemble.ear).mean())
    return found


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
    rows = max(1, min(ROWS, ANSWERS // (len(some) * bus.answers)))
    h = h[:: -(-len(h) // rows)]
    z = bus.norm(h)
    return pairwise_output_distance(torch.stack([bus.alone(h, z, k) for k in some]))


def _flips(
    composed: Composed,
    previous: Composed | None,
    h: Tensor,
    rows: Sequence[Row],
    judged: Judged,
    before: Judged | None,
) -> float | None:
    """Return the share of flipped routes, by the columns' names."""
    if previous is None:
        return None
    chunks = [[c.key for c in x.bus.layout.chunks] for x in (composed, previous)]
    if previous.fingerprint != composed.fingerprint or chunks[0] != chunks[1]:
        return None
    both = set(composed.bus.ids) & set(previous.bus.ids)
    kept = torch.tensor([r.domain in both for r in rows])
    if not kept.any():
        return None
    if before is None:
        before = judge(previous, h[kept], [r for r in rows if r.domain in both])
    columns = dict.fromkeys((*composed.bus.columns, *previous.bus.columns))
    names = {c: n for n, c in enumerate(columns)}
    return assignment_flip_rate(
        _named(before.heaviest, previous.bus.columns, names),
        _named(judged.heaviest[kept], composed.bus.columns, names),
    )


def _named(columns: Tensor, of: Sequence[str], names: Mapping[str, int]) -> Tensor:
    """Return columns under numbers that are the same in both compositions."""
    return torch.tensor([names[c] for c in of])[columns]


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
