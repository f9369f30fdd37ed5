"""Train every system of a data set with the same number of parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from red_lab.matched.apart import ComposedSystem, train_experts, train_gate
from red_lab.matched.closed_form import closed_form_router
from red_lab.matched.data import Problem
from red_lab.matched.recipe import Recipe, Tick, descend
from red_lab.matched.system import System
from red_lab.matched.systems import Dense, Soft, Sparse, matched_width

__all__ = ["ACTIVE", "EVIDENCE", "RED", "Trained", "train_all"]

RED, EVIDENCE = "RED", "RED, evidence router"
ACTIVE = 2
"""k of the sparse mixture."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A system after training.

    Attributes:
        system: The trained system.
        parameters: Number of parameters trained by gradient, P.
        seconds: CPU seconds of training.
    """

    system: System
    parameters: int
    seconds: float


def train_all(problem: Problem, *, recipe: Recipe, seed: int, tick: Tick) -> dict[str, Trained]:
    """Train every system; the others are matched to RED's number of parameters."""
    start = time.process_time()
    experts = train_experts(problem, recipe=recipe, seed=seed, tick=tick)
    apart = time.process_time()
    gate = train_gate(problem, recipe=recipe, seed=seed, tick=tick)
    routed = time.process_time()
    router = closed_form_router(problem, experts)
    solved = time.process_time()
    classifier = problem.classifier
    red = ComposedSystem(experts=experts, router=gate, classifier=classifier)
    evidence = ComposedSystem(experts=experts, router=router, classifier=classifier)
    found = {
        RED: Trained(system=red, parameters=_size(red), seconds=routed - start),
        EVIDENCE: Trained(
            system=evidence, parameters=_size(evidence), seconds=apart - start + solved - routed
        ),
    }
    width, classes, count = problem.width, len(problem.labels), len(problem.domains)
    one = matched_width(_size(red), width=width, classes=classes)
    each = matched_width(_size(red), width=width, classes=classes, experts=count)
    shape = {"width": width, "classes": classes, "seed": seed}
    made: dict[str, System] = {
        "dense head": Dense(units=one, **shape),
        "soft MoE": Soft(units=each, experts=count, **shape),
        f"sparse top-{ACTIVE} MoE": Sparse(units=each, experts=count, k=ACTIVE, **shape),
    }
    joint = {n: _jointly(n, s, problem, recipe, seed, tick) for n, s in made.items()}
    return {**joint, **found}


def _jointly(
    name: str, system: System, problem: Problem, recipe: Recipe, seed: int, tick: Tick
) -> Trained:
    start = time.process_time()
    tick_system: Callable[[], None] = lambda: tick(name)  # noqa: E731
    descend(system, problem.train, recipe=recipe, seed=seed, tick=tick_system)
    return Trained(system=system, parameters=_size(system), seconds=time.process_time() - start)


def _size(system: System) -> int:
    return sum(p.numel() for p in system.parameters())
