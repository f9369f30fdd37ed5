"""Run the toy experiments over seeds; write metrics.json, the page and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from red_lab.intervals import interval
from red_lab.metrics import Metrics, render, write_results
from red_lab.toy import bus, linear, nonlinear, propositions, residual
from red_lab.toy.data import PLACES, Systems, grid, score
from red_lab.toy.figures import draw
from red_lab.toy.mlp import MLPRecipe
from red_lab.training import one_thread

__all__ = ["Effort", "Measured", "measure", "page", "run", "summarise"]

ROWS = {
    "A, least squares: outputs averaged": ("A exact", "uniform"),
    "A, least squares: parameters averaged": ("A exact", "parameters"),
    "B, each expert on its own segment": ("B", "oracle"),
    "B, outputs averaged": ("B", "uniform"),
    "B, parameters averaged": ("B", "parameters"),
    "B, all trained on all segments: outputs averaged": ("B all", "uniform"),
    "B, the same, from one initialisation: parameters averaged": (
        "B all, shared start",
        "parameters",
    ),
    "B, the same, from one trained network: parameters averaged": (
        "B all, trained start",
        "parameters",
    ),
    "C, base (.5, .5) alone": ("C scaled, exact", "alone"),
    "C, base (.5, .5), own expert": ("C scaled, exact", "oracle"),
    "C, base (.5, .5), outputs averaged": ("C scaled, exact", "uniform"),
    "C, base (.49, .5) alone": ("C scaled, near", "alone"),
    "C, base (.49, .5), own expert": ("C scaled, near", "oracle"),
    "C, base (.49, .5), outputs averaged": ("C scaled, near", "uniform"),
    "C, base (.4, .4) + .05 alone": ("C scaled, rough", "alone"),
    "C, base (.4, .4) + .05, own expert": ("C scaled, rough", "oracle"),
    "C, base (.4, .4) + .05, outputs averaged": ("C scaled, rough", "uniform"),
}
"""Rows of the first table: an experiment and a system."""

SYSTEMS = {
    "oracle": "oracle routing",
    "learned": "learned routing",
    "uniform": "outputs averaged",
    "parameters": "parameters averaged",
    "sum": "every weight 1",
    "alone": "one model alone",
}
EXPERIMENTS = {
    "A exact": "A: linear experts, least squares",
    "A sgd": "A: linear experts, plain SGD in float32",
    "B": "B: MLP experts 2-64-64-1",
    "B shared start": "B, from one initialisation",
    "B all": "B control: every expert saw all segments",
    "B all, shared start": "B control: the same, from one initialisation",
    "B all, trained start": "B control: the same, from one trained network",
    "C scaled, exact": "C: base (.5, .5) + 0.1 · MLP",
    "C scaled, near": "C: base (.49, .5) + 0.1 · MLP",
    "C scaled, rough": "C: base (.4, .4) + .05 + 0.1 · MLP",
    "C bounded, near": "C: base (.49, .5) + .02 · tanh(MLP)",
    "C bounded, rough": "C: base (.4, .4) + .05 + .2 · tanh(MLP)",
    "C bus, exact": "C on the bus: base (.5, .5)",
    "C bus, near": "C on the bus: base (.49, .5)",
    "C bus, rough": "C on the bus: base (.4, .4) + .05",
}


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.toy/1``."""
    places = metrics["systems"]["A exact"]["oracle"]
    segments = sorted((p for p in places if p != "off"), key=lambda p: int(p.split("-")[0]))
    return render(
        "toy", metrics, rows=ROWS, names=SYSTEMS, experiments=EXPERIMENTS, segments=segments
    )


SCHEMA = "red-lab.toy/1"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Training effort; tests use less.

    Attributes:
        recipe: Settings of the networks in B.
        residual: Settings of the residual experts in C.
        descent: Settings of the linear experts.
        epochs: Epochs of the experts on the bus.
        router_steps: Steps of the router.
    """

    recipe: MLPRecipe = field(default_factory=MLPRecipe)
    residual: MLPRecipe = field(default_factory=lambda: MLPRecipe(steps=3000))
    descent: linear.Descent = field(default_factory=linear.Descent)
    epochs: int = 300
    router_steps: int = 600


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Results of one seed.

    Attributes:
        answers: The answers of every system, by experiment.
        routed: Share of a segment's points that the router assigns to their expert.
        numbers: The numbers of the propositions.
        experts: The answers of A's and B's experts, and C's residuals on the exact base,
            ``(E, N)``, for a figure.
    """

    answers: Mapping[str, Systems]
    routed: float
    numbers: Mapping[str, Mapping[str, float]]
    experts: Mapping[str, Tensor]


def run(*, seeds: int, out: Path, effort: Effort | None = None) -> Path:
    """Measure over seeds and write the results.

    Args:
        seeds: Number of random seeds.
        out: Folder of the results.
        effort: Training effort; full by default.

    Returns:
        The path of metrics.json.
    """
    with one_thread():
        measured = [measure(seed, effort=effort or Effort()) for seed in range(seeds)]
    first = measured[0]
    shown = partial(draw, answers=first.answers, experts=first.experts)
    return write_results(summarise(measured), out, page=page, draw=shown)


def measure(seed: int, *, effort: Effort) -> Measured:
    """Train everything with one seed."""
    router = bus.learn_router(seed, steps=effort.router_steps)
    alpha = bus.route(router)
    lines = linear.train(seed, descent=effort.descent)
    networks = nonlinear.train(seed, recipe=effort.recipe)
    residuals = residual.train(seed, recipe=effort.residual)
    on_bus = {
        f"C bus, {n}": bus.measure(seed, n, router=router, epochs=effort.epochs)
        for n in residual.BASES
    }
    answers = {
        **linear.measure(lines, alpha=alpha),
        **nonlinear.measure(networks, alpha=alpha),
        **{f"C {n}": r.use(alpha=alpha) for n, r in residuals.items()},
        **on_bus,
    }
    chosen = (alpha.argmax(1) == grid().owner)[grid().inside]
    numbers = {
        "1": propositions.first(seed),
        "2": {**propositions.second(networks["B"]), "represented": _represented()},
        "3": propositions.third(seed, residuals),
    }
    return Measured(
        answers=answers,
        routed=float(chosen.double().mean()),
        numbers=numbers,
        experts={
            "A sgd": linear.outputs(lines["A sgd"]),
            "B": nonlinear.outputs(networks["B"]),
            "C scaled, exact": residuals["scaled, exact"].parts,
        },
    )


def summarise(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return the metrics over all seeds, numbers rounded to six digits."""
    first = measured[0]
    return {
        "schema": SCHEMA,
        "seeds": len(measured),
        "points": {"segment": grid().home.shape[1], "off": int((~grid().inside).sum())},
        "conditions": [_round(c) for c in linear.conditions()],
        "scalar_norm": bus.norm_of_a_scalar(),
        "router": _spread([m.routed for m in measured]),
        "systems": {
            experiment: {
                name: _scores([m.answers[experiment][name] for m in measured]) for name in found
            }
            for experiment, found in first.answers.items()
        },
        "propositions": {
            number: {k: _spread([m.numbers[number][k] for m in measured]) for k in found}
            for number, found in first.numbers.items()
        },
    }


def _represented() -> float:
    """Return the largest error, in units of the sum, of the network that equals y by design."""
    errors = score(nonlinear.outputs(propositions.represented())[0])["max"]
    return max(errors.values())


def _scores(answers: Sequence[Tensor]) -> dict[str, dict[str, Any]]:
    """Return for each place the accuracy with its interval, the mean MAE, and the largest error."""
    scores = [score(a) for a in answers]
    found = {}
    for place in PLACES:
        right = np.array([s["accuracy"][place] for s in scores])
        low, high = interval(right, [str(seed) for seed in range(len(scores))])
        found[place] = {
            "accuracy": _round(float(right.mean())),
            "low": _round(low),
            "high": _round(high),
            "mae": _round(float(np.mean([s["mae"][place] for s in scores]))),
            "max": _round(max(s["max"][place] for s in scores)),
        }
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the mean and the largest over seeds."""
    return {
        "min": _round(min(values)),
        "mean": _round(float(np.mean(values))),
        "max": _round(max(values)),
    }


def _round(value: float) -> float:
    return float(f"{value:.6g}")
