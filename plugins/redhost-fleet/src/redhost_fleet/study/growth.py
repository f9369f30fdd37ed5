"""A model of a swap over many replicas: polls, bytes through one store, and the slowest replica.

With n replicas that poll every p seconds, a latency of l per request, S new bytes of a generation,
a store that serves B bytes a second in total and b to each, and w seconds to load and warm up:

    the last replica follows within    p + (r + 2) l + max(S / b, n S / B) + w
    requests a second while nothing is new    2 n / p
    bytes moved by a swap    n S

r is the number of new objects. A simulation of each poll and each byte, below, is for comparison.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Plan", "bound", "measure", "simulate"]

MIB = 2**20
REPLICAS = (1, 10, 100, 1000)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parameters of a modelled fleet.

    Attributes:
        poll: p, seconds.
        latency: l, seconds.
        objects: r.
        size: S, bytes.
        store: B, bytes a second.
        link: b, bytes a second.
        load: w, seconds.
    """

    poll: float = 0.5
    latency: float = 0.03
    objects: int = 6
    size: float = 2 * MIB
    store: float = 1250 * MIB
    link: float = 60 * MIB
    load: float = 0.3


PLANS = {
    "one small expert is new": Plan(),
    "one adapter of 20 MiB is new": Plan(size=20 * MIB),
    "a cold start: all of 500 MiB": Plan(size=500 * MIB, objects=60),
}


def bound(plan: Plan, replicas: int) -> float:
    """Return the formula's bound on the seconds until the last replica follows."""
    bytes_ = max(plan.size / plan.link, replicas * plan.size / plan.store)
    return plan.poll + (plan.objects + 2) * plan.latency + bytes_ + plan.load


def simulate(plan: Plan, replicas: int, *, seed: int, step: float = 0.01) -> list[float]:
    """Return the times at which replicas follow, ascending; each polls at its own time.

    In a step the store's bytes are shared by the downloading replicas, none faster than its link.

    Args:
        plan: The fleet.
        replicas: Number of replicas.
        seed: Seed of the random numbers.
        step: Seconds of a step.
    """
    draw = random.Random(seed)  # noqa: S311  (no secret)
    requests = (plan.objects + 2) * plan.latency
    begins = sorted(draw.uniform(0, plan.poll) + requests for _ in range(replicas))
    left, done, now, begun = dict[int, float](), list[float](), 0.0, 0
    while len(done) < replicas:
        now += step
        while begun < replicas and begins[begun] <= now:
            left[begun] = plan.size
            begun += 1
        rate = min(plan.link, plan.store / len(left)) if left else 0.0
        for replica in list(left):
            left[replica] -= rate * step
            if left[replica] <= 0:
                del left[replica]
                done.append(now + plan.load)
    return done


def measure(*, seed: int, replicas: Sequence[int] = REPLICAS) -> dict[str, Any]:
    """Simulate every plan at every size."""
    rows = []
    for name, plan in PLANS.items():
        for n in replicas:
            followed = simulate(plan, n, seed=seed)
            rows.append(
                {
                    "plan": name,
                    "replicas": n,
                    "median": followed[len(followed) // 2],
                    "last": followed[-1],
                    "formula": bound(plan, n),
                    "bytes": n * plan.size,
                    "requests": 2 * n / plan.poll,
                }
            )
    return {"rows": rows, "link": Plan().link, "store": Plan().store, "poll": Plan().poll}
