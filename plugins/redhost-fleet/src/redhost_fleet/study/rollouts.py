"""Simulated canaries: how often good ones are rejected, bad ones found, and the labels needed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import Any

from red_lab.progress import Bar

from redhost_fleet.documents import Comparison
from redhost_fleet.rollout import Limits, decide

__all__ = ["KINDS", "LOOK", "measure", "rollout", "summary"]

EXPERTS = 5
LOOK = 20
"""Labels between two evaluations."""

KINDS: tuple[tuple[str, float, float, bool], ...] = (
    ("as good, 1 % differ each way", 0.01, 0.01, False),
    ("as good, 5 % differ each way", 0.05, 0.05, False),
    ("3 points worse, nothing better", 0.0, 0.03, False),
    ("3 points worse, 1 % better", 0.01, 0.04, False),
    ("3 points worse, 2.5 % better", 0.025, 0.055, False),
    ("3 points worse, 4 % better", 0.04, 0.07, False),
    ("one of five experts 15 points worse (3 in all)", 0.0, 0.15, True),
)
"""Description, how often only the canary is right, how often only production, for one expert."""


def rollout(
    draw: random.Random, *, better: float, worse: float, one: bool, labels: int, limits: Limits
) -> tuple[str, int]:
    """Label texts until the canary ends; return its outcome and the number of labels.

    Args:
        draw: The random generator.
        better: How often only the canary is right.
        worse: How often only production is right.
        one: Whether they differ on the texts of one expert only.
        labels: Maximum number of labels.
        limits: The limits of the decision.
    """
    counts = {f"expert{n}": [0, 0, 0] for n in range(EXPERTS)}
    for n in range(1, labels + 1):
        expert = draw.randrange(EXPERTS)
        u = draw.random() if not one or expert == 0 else 1.0
        which = 0 if u < better else 1 if u < better + worse else 2
        counts[f"expert{expert}"][which] += 1
        if n % LOOK == 0:
            found = {k: Comparison(better=b, worse=w, same=s) for k, (b, w, s) in counts.items()}
            decision = decide(found, limits, experts=EXPERTS)
            if decision.action != "hold":
                return decision.action, n
    return "hold", labels


def measure(*, rollouts: int, labels: int, seed: int) -> dict[str, Any]:
    """Run simulated canaries of every kind.

    Args:
        rollouts: Number of canaries of each kind.
        labels: Maximum number of labels of each.
        seed: Seed of the random numbers.
    """
    limits, rows = Limits(), list[dict[str, Any]]()
    bar = Bar("rollouts", total=len(KINDS) * rollouts)
    for kind, better, worse, one in KINDS:
        draw = random.Random(f"{seed} {kind}")  # noqa: S311  (no secret)
        ended: list[tuple[str, int]] = []
        for _ in range(rollouts):
            ended.append(
                rollout(draw, better=better, worse=worse, one=one, labels=labels, limits=limits)
            )
            bar.update(len(rows) * rollouts + len(ended))
        rows.append({"kind": kind, **summary(ended)})
    return {
        "rollouts": rollouts,
        "labels": labels,
        "look": LOOK,
        "limits": {"alarm": limits.alarm, "miss": limits.miss, "margin": limits.margin},
        "rows": rows,
    }


def summary(ended: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return the frequency of each outcome, and the median number of labels."""
    found: dict[str, Any] = {}
    for action in ("end", "promote", "hold"):
        after = [n for how, n in ended if how == action]
        found[action] = len(after) / len(ended)
        if action != "hold":
            found[f"{action}_after"] = median(after) if after else None
    return found
