"""`redhost lab toy`: which separately trained experts can be mixed, on adding two numbers.

The experiments run over seeds; metrics.json, the page and the figures are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from red_lab.intervals import interval
from red_lab.metrics import Metrics, drawing, render, write_results
from red_lab.toy import bus, linear, nonlinear, propositions, residual
from red_lab.toy.data import PLACES, SIDE, UNITS, Systems, grid, score
from red_lab.toy.mlp import MLPRecipe
from red_lab.training import one_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DIAGONALS", "Effort", "Measured", "draw", "measure", "page", "run", "summarise"]


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.toy/1``."""
    return render("toy", metrics)


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


# -- figures ---------------------------------------------------------------------------------------

FIGURES = ("accuracy.svg", "diagonal.svg", "mix-error.svg")

PANELS = {
    "A sgd": "A: linear experts (SGD)",
    "B": "B: MLP experts",
    "C scaled, near": "C: base (.49, .5) + 0.1 · MLP",
    "C scaled, rough": "C: base (.4, .4) + .05 + 0.1 · MLP",
}
BARS = {
    "oracle": "oracle routing",
    "learned": "learned routing",
    "uniform": "outputs averaged",
    "parameters": "parameters averaged",
    "alone": "base, or one expert, alone",
}
AVERAGES = {name: BARS[name] for name in ("uniform", "parameters")}
DIAGONALS: Mapping[str, Mapping[str, str]] = {
    "A sgd": AVERAGES,
    "B": AVERAGES,
    "C scaled, exact": {"uniform": "base and all, mixed", "alone": "base"},
}
"""Which combinations are drawn in addition to the experts, with their names in the legend."""

STYLE: Mapping[str, Any] = {
    "font.size": 8.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def draw(
    metrics: Metrics,
    out: Path,
    *,
    answers: Mapping[str, Systems],
    experts: Mapping[str, Tensor],
) -> None:
    """Write the figures of `FIGURES`.

    Args:
        metrics: The result of `summarise`, for the bars.
        out: The folder.
        answers: One seed's answers by experiment, for the other two.
        experts: That seed's answers of A's and B's experts and C's residuals, ``(E, N)``.
    """
    grids = partial(drawing, salt="red-lab.toy", settings=STYLE)
    bars, diagonals, heat = (out / name for name in FIGURES)
    with grids(bars, figsize=(9.0, 6.0), nrows=2, ncols=2) as axes:
        for ax, (experiment, title) in zip(axes.flat, PANELS.items(), strict=True):
            _bars(ax, metrics["systems"][experiment], title)
        handles, labels = ax.get_legend_handles_labels()
        ax.figure.legend(handles, labels, loc="outside lower center", ncols=len(BARS))
    with grids(diagonals, figsize=(12.0, 4.2), ncols=3) as axes:
        for ax, (name, drawn) in zip(axes.flat, DIAGONALS.items(), strict=True):
            _diagonal(ax, name, answers[name], experts[name], drawn)
    with grids(heat, figsize=(9.0, 3.4), ncols=3) as axes:
        for ax, name in zip(axes.flat, ("exact", "near", "rough"), strict=True):
            _heat(ax, answers[f"C scaled, {name}"]["uniform"], f"{name} base")


def _bars(ax: Axes, systems: Mapping[str, Any], title: str) -> None:
    """Draw accuracy by place, a bar for each system, with its interval over seeds."""
    width = 0.8 / len(BARS)
    for n, (name, label) in enumerate(BARS.items()):
        cells = [systems[name][place] for place in PLACES]
        means = [c["accuracy"] for c in cells]
        below = [max(0.0, c["accuracy"] - c["low"]) for c in cells]
        above = [max(0.0, c["high"] - c["accuracy"]) for c in cells]
        where = [i + (n - (len(BARS) - 1) / 2) * width for i in range(len(PLACES))]
        ax.bar(where, means, width, yerr=[below, above], label=label, error_kw={"lw": 0.7})
    ax.set_xticks(range(len(PLACES)), PLACES)
    ax.set(title=title, ylabel="accuracy", ylim=(0, 1.05))


def _diagonal(
    ax: Axes, experiment: str, systems: Systems, experts: Tensor, drawn: Mapping[str, str]
) -> None:
    """Draw the outputs of experts, or residuals, and of their combinations along a = b."""
    line = [n for n, (a, b) in enumerate(grid().x.tolist()) if a == b]
    numbers = range(1, SIDE + 1)
    for n, answers in enumerate(experts):
        ax.plot(numbers, (UNITS * answers[line]).tolist(), lw=0.9, label=f"expert {PLACES[n]}")
    for (name, label), style in zip(drawn.items(), ("k-", "k:"), strict=True):
        ax.plot(numbers, (UNITS * systems[name][line]).tolist(), style, lw=1.5, label=label)
    ax.plot(numbers, [2 * a for a in numbers], "--", color="0.5", lw=1.0, label="a + b")
    ax.set(title=f"{experiment[0]} along a = b", xlabel="a", ylabel="answer, in units of the sum")
    ax.legend(fontsize=6)


def _heat(ax: Axes, answers: Tensor, title: str) -> None:
    """Draw |mix − y| over the grid, in units of the sum; the segments are outlined."""
    error = (UNITS * answers - grid().sums).abs().reshape(SIDE, SIDE)
    image = ax.imshow(
        error.T.tolist(), origin="lower", extent=(0.5, SIDE + 0.5, 0.5, SIDE + 0.5), cmap="viridis"
    )
    for low in range(0, SIDE, 20):
        edge = [low + 0.5, low + 20.5]
        ax.plot(
            [*edge, *edge[::-1], edge[0]], [edge[0]] * 2 + [edge[1]] * 2 + [edge[0]], "w", lw=0.6
        )
    ax.grid(visible=False)
    ax.set(title=f"{title}: |mix − y|", xlabel="a", ylabel="b")
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
