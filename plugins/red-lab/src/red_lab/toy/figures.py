"""Draw the toy experiments; the same numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from red_lab.metrics import Metrics, drawing
from red_lab.toy.data import PLACES, SIDE, UNITS, Systems, grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

__all__ = ["FIGURES", "draw"]

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
