"""Write the page of `redhost lab toy` from its metrics."""

from __future__ import annotations

from red_lab.metrics import Metrics, render

__all__ = ["page"]

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
