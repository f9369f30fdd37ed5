"""One seed of one data set: train and evaluate every system, and measure its curvature."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

import torch
from redhost_mechanisms import usage_entropy
from torch import Tensor

from red_lab.matched.apart import Alone, ComposedSystem
from red_lab.matched.closed_form import ClosedFormRouter
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.hessian import sharpness
from red_lab.matched.recipe import Recipe, Tick
from red_lab.matched.system import System
from red_lab.matched.train import EVIDENCE, RED, train_all

__all__ = ["hits", "measure"]


def measure(problem: Problem, *, recipe: Recipe, seed: int, tick: Tick) -> dict[str, Any]:
    """Train everything with one seed and return the measurements by system.

    Args:
        problem: The data.
        recipe: The training settings.
        seed: Random seed of initial weights, order of rows, dropout and noise.
        tick: Called after each epoch of each system.
    """
    trained = train_all(problem, recipe=recipe, seed=seed, tick=tick)
    curved: dict[str, list[dict[str, float]]] = {}
    for name, t in trained.items():
        if name != EVIDENCE:
            curved[name] = [asdict(sharpness(t.system, problem.train))]
    composed = curved[RED]
    curved[RED] = curved[EVIDENCE] = _blocks(problem, trained[RED].system)
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
                "usage_entropy": _entropy(t.system, problem.test),
                "eigenvalues": curved[name],
            }
            for name, t in trained.items()
        },
        "composed": composed[0],
        "gate": _right(trained[RED].system, problem.test),
        "listening": _right(trained[EVIDENCE].system, problem.test),
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


def _blocks(problem: Problem, red: System) -> list[dict[str, float]]:
    """Return the top eigenvalue of each expert's own loss, the blocks of RED's Hessian.

    The loss of an expert does not depend on the parameters of other experts or of the router.
    """
    if not isinstance(red, ComposedSystem):
        raise TypeError(f"expected a composition, found {type(red).__name__}")
    firsts = itertools.accumulate((len(y) for y in problem.labels_of[:-1]), initial=0)
    alone = [
        Alone(e, classifier=problem.classifier, first=first)
        for e, first in zip(red.parts(), firsts, strict=True)
    ]
    return [asdict(sharpness(a, problem.train.of(k))) for k, a in enumerate(alone)]


def _entropy(system: System, part: DataPart) -> float | None:
    with torch.inference_mode():
        alpha = system.alpha(part.z)
    return None if alpha is None else usage_entropy(alpha)


def _right(system: System, part: DataPart) -> float:
    """Return the share of rows whose own domain has the largest weight."""
    with torch.inference_mode():
        alpha = system.alpha(part.z)
    if alpha is None:
        raise TypeError("a system without experts has no router")
    return float((alpha.argmax(-1) == part.owner).double().mean())


def _stored(system: System) -> int:
    router = system.get_submodule("router")
    return router.stored() if isinstance(router, ClosedFormRouter) else 0
