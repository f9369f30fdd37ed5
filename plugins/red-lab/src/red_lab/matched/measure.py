"""Train every system with the same number of parameters, and evaluate it.

The number of epochs is the one with the best mean validation accuracy over all systems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from redhost_mechanisms import usage_entropy
from torch import Tensor

from red_lab.matched import EVIDENCE, RED
from red_lab.matched.apart import (
    ClosedFormRouter,
    ComposedSystem,
    closed_form_router,
    train_experts,
    train_gate,
)
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.systems import (
    Dense,
    Recipe,
    Soft,
    Sparse,
    System,
    Tick,
    descend,
    matched_width,
)
from red_lab.metrics import cached_json
from red_lab.training import one_thread

__all__ = ["EPOCHS", "choose", "hits", "measure", "train_all"]

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


def measure(problem: Problem, *, recipe: Recipe, seed: int, tick: Tick) -> dict[str, Any]:
    """Train everything with one seed and return the measurements by system.

    Args:
        problem: The data.
        recipe: The training settings.
        seed: Random seed of initial weights, order of rows, dropout and noise.
        tick: Called after each epoch of each system.
    """
    trained = train_all(problem, recipe=recipe, seed=seed, tick=tick)
    with torch.inference_mode():
        every = {name: t.system.alpha(problem.test.z) for name, t in trained.items()}
    weights = {name: alpha for name, alpha in every.items() if alpha is not None}
    routed = {
        name: float((alpha.argmax(-1) == problem.test.owner).double().mean())
        for name, alpha in weights.items()
    }
    return {
        "seed": seed,
        "clusters": list(problem.clusters),
        "domains": [problem.domains[int(k)] for k in problem.test.owner],
        "systems": {
            name: {
                "hits": hits(t.system, problem.test).tolist(),
                "train": float(hits(t.system, problem.train).mean()),
                "parameters": t.parameters,
                "multiply_adds": t.system.multiply_adds(),
                "seconds": t.seconds,
                "usage_entropy": usage_entropy(weights[name]) if name in weights else None,
            }
            for name, t in trained.items()
        },
        "gate": routed[RED],
        "listening": routed[EVIDENCE],
        "stored": _stored(trained[EVIDENCE].system),
        "shape": {
            "width": problem.width,
            "classes": len(problem.labels),
            "rank": problem.rank,
            "train": len(problem.train),
            "distinct": len(problem.train.distinct()),
        },
    }


def hits(system: System, part: DataPart) -> Tensor:
    """Return for each row whether the answer is correct, ``(N,)`` of 0.0 and 1.0."""
    with torch.inference_mode():
        return (system.log_p(part.h, part.z).argmax(-1) == part.target).double()


def _stored(system: System) -> int:
    router = system.get_submodule("router")
    return router.stored() if isinstance(router, ClosedFormRouter) else 0


EPOCHS = (5, 10, 20, 40, 80, 160)


def choose(
    open_problem: Callable[[], Problem],
    *,
    recipe: Recipe,
    file: Path,
    shown: Callable[[str, int], Tick],
    epochs: Sequence[int] = EPOCHS,
) -> dict[str, Any]:
    """Return the chosen epochs and the accuracies of all candidates; seed 0, without test rows.

    Args:
        open_problem: Returns the data; called if no stored result exists.
        recipe: The other training settings.
        file: File of the stored result; written if it does not exist.
        shown: Label and epochs of a training → its progress.
        epochs: The candidates; ties go to the earlier one.
    """

    def candidates() -> dict[str, Any]:
        problem, valid = open_problem(), {}
        for number in epochs:
            given, tick = replace(recipe, epochs=number), shown(f"{number} epochs", number)
            with one_thread():
                trained = train_all(problem, recipe=given, seed=0, tick=tick)
            valid[str(number)] = {
                n: float(hits(t.system, problem.valid).mean())
                for n, t in trained.items()
                if n != EVIDENCE  # its confidences are measured on these rows
            }
        return {"valid": valid, "rows": len(problem.valid)}

    measured = cached_json(file, candidates)
    means = {int(n): sum(v.values()) / len(v) for n, v in measured["valid"].items()}
    return {**measured, "epochs": max(means, key=lambda n: means[n])}
