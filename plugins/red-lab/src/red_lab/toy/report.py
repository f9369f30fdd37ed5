"""Write the metrics of the toy experiments as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.metrics import Metrics
from red_lab.toy.statements import statements

__all__ = ["page"]

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
    lines = [*_head(metrics), *statements(metrics), *_figures()]
    for name, title in EXPERIMENTS.items():
        lines += _table(metrics["systems"][name], title)
    return "\n".join(lines)


def _head(metrics: Mapping[str, Any]) -> list[str]:
    points = metrics["points"]
    return [
        "# Toy experiments: which experts can be trained apart and mixed",
        "",
        "Written by `redhost lab toy` from `metrics.json`; do not edit.",
        "",
        "The target is y = (a + b)/200 for x = (a/100, b/100). Each expert is trained on one of "
        f"five diagonal segments of {points['segment']} points. Accuracy is the share of points "
        "with round(200 ŷ) = a + b; errors are in units of the sum. The column `off` covers the "
        f"{points['off']} points outside all segments: no expert was trained there, and oracle "
        "routing selects the segment of the mean of a and b. Accuracies and mean errors are means "
        f"over {metrics['seeds']} random seeds, with 95 % intervals by bootstrap over seeds "
        "(imprecise with so few); largest errors are over all seeds. The learned router is trained "
        "on segment labels. It gives the largest weight to the right expert on at least "
        f"{metrics['router']['min']:.1%} of the segments' points, but its weights are not "
        "one-hot. *One model alone* is the base in C; A and B have no base, and the expert of "
        "41-60 is used everywhere. The propositions are those of "
        "[seed 000](../../departures.md#toy-experiments-redhost-lab-toy).",
        "",
    ]


def _figures() -> list[str]:
    return [
        "![Accuracy by segment, intervals over seeds](accuracy.svg)",
        "",
        "![Experts of A and B with their averages, and C's base, residuals and mixture, along "
        "a = b, seed 0](diagonal.svg)",
        "",
        "![Error of C's uniform mixture over the grid, seed 0](mix-error.svg)",
        "",
    ]


def _table(systems: Mapping[str, Any], title: str) -> list[str]:
    places = list(next(iter(systems.values())))
    ordered = sorted(places, key=lambda p: (p == "off", int(p.split("-")[0]) if p != "off" else 0))
    lines = [
        f"## {title}",
        "",
        "Accuracy (95 %), mean error, largest error:",
        "",
        f"| system | {' | '.join(ordered)} |",
        "|---" * (len(ordered) + 1) + "|",
    ]
    for name, label in SYSTEMS.items():
        if name in systems:
            cells = " | ".join(_cell(systems[name][place]) for place in ordered)
            lines.append(f"| {label} | {cells} |")
    return [*lines, ""]


def _cell(cell: Mapping[str, float]) -> str:
    accuracy = f"**{cell['accuracy']:.3f}**"
    if cell["low"] < cell["high"]:
        accuracy += f" ({cell['low']:.2f}–{cell['high']:.2f})"
    return f"{accuracy}, {_error(cell['mae'])}, {_error(cell['max'])}"


def _error(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else f"{value:.0e}" if value else "0"  # noqa: PLR2004
