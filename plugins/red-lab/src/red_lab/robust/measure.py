"""One seed of one data set: every router and every monolith, evaluated by domain on test rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from redhost_robust import MinimaxSettings
from torch import Tensor, nn

from red_lab.matched.apart import Alone, alone
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.systems import Recipe
from red_lab.robust.gates import (
    AGAIN,
    SETTINGS,
    centroid_gate,
    distilled,
    growth,
    linear_gate,
    mlp_gate,
    train_gate,
)
from red_lab.robust.traffic import (
    RouterRows,
    UnevenTraffic,
    aggregate,
    lay_out,
    train_monolith,
)
from red_lab.study import timed

__all__ = ["SCENES", "measure"]

SCENES = ("weights", "rows")

Say = Callable[[str], None]


def measure(problem: Problem, *, recipe: Recipe, seed: int, say: Say) -> dict[str, Any]:
    """Train everything with one seed and return the measurements.

    Args:
        problem: The data.
        recipe: Training settings of experts and monoliths.
        seed: Determines halves, the rare domain, initial weights and batches.
        say: Called with a description of the current step.
    """
    say("experts")
    traffic = lay_out(problem, recipe=recipe, seed=seed, tick=lambda _: None)
    scenes = {
        name: _scene(traffic, thinned=name == "rows", recipe=recipe, seed=seed, say=say)
        for name in SCENES
    }
    say("growth")
    return {
        "seed": seed,
        "rare": problem.domains[traffic.rare],
        "domains": list(problem.domains),
        "frequencies": traffic.frequencies.tolist(),
        "rows": [len(p) for p in traffic.even],
        "gate_rows": [len(p) for p in traffic.by_domain(problem.valid)],
        "test_rows": [len(p) for p in traffic.by_domain(problem.test)],
        "reference": [-float(test[1][:, k].mean()) for k, test in enumerate(_tests(traffic))],
        "scenes": scenes,
        "growth": growth(traffic, seed=seed),
    }


def _scene(
    traffic: UnevenTraffic, *, thinned: bool, recipe: Recipe, seed: int, say: Say
) -> dict[str, dict[str, Any]]:
    """Return loss and accuracy by domain, and seconds, of every system on one kind of traffic."""
    clock: dict[str, float] = {}
    gates = _gates(traffic, thinned=thinned, seed=seed, say=say, clock=clock)
    monoliths = _monoliths(traffic, thinned=thinned, recipe=recipe, seed=seed, say=say, clock=clock)
    metrics = {n: _judge_gate(traffic, g) for n, g in gates.items()}
    metrics |= {n: _judge_model(traffic, m) for n, m in monoliths.items()}
    return {n: {**t, "seconds": clock.get(n, 0.0)} for n, t in metrics.items()}


def _gates(
    traffic: UnevenTraffic, *, thinned: bool, seed: int, say: Say, clock: dict[str, float]
) -> dict[str, nn.Module]:
    """Train every router."""
    rows = traffic.router_rows(traffic.seen(traffic.even, thinned=thinned))
    count = len(traffic.experts)
    even = torch.full((count,), 1 / count)
    found: dict[str, nn.Module] = {"uniform": linear_gate(traffic)}  # at zero

    def learn(
        name: str,
        gate: nn.Module,
        *,
        start: Tensor = even,
        moves: bool = True,
        settings: MinimaxSettings = SETTINGS,
    ) -> Tensor:
        say(name)
        with timed(clock, name):
            played = train_gate(
                gate, traffic, rows, start=start, moves=moves, seed=seed, settings=settings
            )
        found[name] = gate
        return played.weights

    learn("average", linear_gate(traffic), start=traffic.frequencies, moves=False)
    learn("balanced", linear_gate(traffic), moves=False)
    learn("robust", linear_gate(traffic))
    weights = learn("robust, MLP", mlp_gate(traffic, seed=seed))
    for kind, make in (
        ("linear", lambda traffic, _: linear_gate(traffic)),
        ("centroid", centroid_gate),
    ):
        name = f"distilled, {kind}"
        with timed(clock, name):
            student = distilled(make, found["robust, MLP"], traffic, rows, weights=weights)
        found[name] = copy.deepcopy(student)
        learn(f"{name}, game again", student, start=weights, settings=AGAIN)
    return found


def _monoliths(
    traffic: UnevenTraffic,
    *,
    thinned: bool,
    recipe: Recipe,
    seed: int,
    say: Say,
    clock: dict[str, float],
) -> dict[str, Alone]:
    parts = aggregate(traffic, thinned=thinned)
    even = torch.full((len(parts),), 1 / len(parts))
    plans = {
        "monolith": (traffic.frequencies, False),
        "monolith, balanced": (even, False),
        "monolith, group DRO": (even, True),
    }
    found = {}
    for name, (start, moves) in plans.items():
        say(name)
        with timed(clock, name):
            found[name] = train_monolith(
                traffic, parts, recipe=recipe, start=start, moves=moves, seed=seed
            )
    return found


def _tests(traffic: UnevenTraffic) -> tuple[RouterRows, ...]:
    return traffic.router_rows(traffic.by_domain(traffic.problem.test))


def _judge_gate(traffic: UnevenTraffic, gate: nn.Module) -> dict[str, Any]:
    """Return loss and accuracy of Σ_j g_j p_j by domain."""
    losses, accuracies = [], []
    for part, (z, log_p) in zip(
        traffic.by_domain(traffic.problem.test), _tests(traffic), strict=True
    ):
        with torch.no_grad():
            log_gate = torch.log_softmax(gate(z), dim=-1)
            losses.append(-float(torch.logsumexp(log_gate + log_p, dim=-1).mean()))
            mixed = _mixture(traffic, log_gate, part)
        accuracies.append(float((mixed.argmax(-1) == part.target).double().mean()))
    return {"loss": losses, "accuracy": accuracies}


def _mixture(traffic: UnevenTraffic, log_gate: Tensor, part: DataPart) -> Tensor:
    """Return Σ_j g_j p_j(·|x) ``(N, C)``."""
    parts = [
        log_gate[:, k, None].exp() * expert.log_p(part.h, part.z).exp()
        for k, expert in enumerate(alone(traffic.problem, traffic.experts))
    ]
    return torch.cat(parts, 1) if traffic.problem.classifier is None else torch.stack(parts).sum(0)


def _judge_model(traffic: UnevenTraffic, model: Alone) -> dict[str, Any]:
    losses, accuracies = [], []
    for part in traffic.by_domain(traffic.problem.test):
        with torch.no_grad():
            log_p = model.log_p(part.h, part.z)
        losses.append(float(nn.functional.nll_loss(log_p, part.target)))
        accuracies.append(float((log_p.argmax(-1) == part.target).double().mean()))
    return {"loss": losses, "accuracy": accuracies}
