"""The findings of the toy experiments as sentences; every number is read from the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["statements"]


def statements(metrics: Mapping[str, Any]) -> list[str]:
    """Return the page's sections on the experiments and the three propositions."""
    return [*_experiments(metrics), *_first(metrics), *_second(metrics), *_third(metrics)]


def _accuracies(places: Mapping[str, Any]) -> str:
    """Return the segments' accuracies in order, each the mean over seeds."""
    segments = sorted((p for p in places if p != "off"), key=lambda p: int(p.split("-")[0]))
    return ", ".join(f"{places[p]['accuracy']:.2f}" for p in segments)


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


def _experiments(metrics: Mapping[str, Any]) -> list[str]:
    systems = metrics["systems"]
    last = systems["A sgd"]["oracle"]["81-100"]["max"]
    conditions = ", ".join(f"{c:.0f}" for c in metrics["conditions"])
    table = [f"| {title} | {_accuracies(systems[e][s])} |" for title, (e, s) in ROWS.items()]
    return [
        "| | accuracy on the five segments |",
        "|---|---|",
        *table,
        "",
        f"**A.** Condition numbers of the Hessians: {conditions}. Plain SGD converges most slowly "
        f"on the last segment: an error of up to {last:.2f} units remains there, and none with "
        "least squares.",
        "",
        "**B.** The averages fail because the experts were trained on different segments, not "
        "because outputs cannot be averaged: the outputs of experts that were all trained on all "
        "segments can. Parameters can be averaged safely if training continues from one trained "
        "network; a shared initialisation is not enough to rely on.",
        "",
        *_residual(systems),
        "On the bus, experts take features as input. The base's prediction is a single number, and "
        f"its LayerNorm is {metrics['scalar_norm']:.0f} at every point, so it carries no "
        "information.",
        "",
    ]


def _residual(systems: Mapping[str, Any]) -> list[str]:
    """Return the error of C's uniform mixture; rounding tolerates at most half a unit."""
    worst = {
        name: max(
            c["max"] for p, c in systems[f"C scaled, {name}"]["uniform"].items() if p != "off"
        )
        for name in ("exact", "near", "rough")
    }
    return [
        "**C.** Largest error of the uniform mixture on the segments, in units of the sum, over "
        f"all seeds: exact base {worst['exact']:.2f}, base (.49, .5) {worst['near']:.2f}, base "
        f"(.4, .4) + .05 {worst['rough']:.2f}. Rounding tolerates an error of half a unit. A base "
        "with an error of up to two units therefore gives correct mixtures with most seeds, but "
        "not with all, and a base with an error of up to thirty does not, although its experts are "
        "as accurate on their own segments. Mixing works because the base is accurate and the "
        "residuals are small, not because of the residual form. (The base (.49, .5) has an error "
        "of exactly half a unit where a = 25; there the result depends on rounding.)",
        "",
    ]


def _first(metrics: Mapping[str, Any]) -> list[str]:
    p = metrics["propositions"]["1"]
    return [
        "**Proposition 1**, corrected: with full column rank on each segment and no noise, all "
        "linear experts have the same minimiser. The rank is "
        f"{p['rank']['min']:.0f} on every segment, and the fits differ from (½, ½, 0) by at most "
        f"{p['apart']['max']:.0e}. With noise of one unit on the targets, the fits differ from "
        f"each other by up to {p['noisy apart']['max']:.3f}, and their largest error on the grid "
        f"is {p['noisy error']['max']:.1f} units. On segments with a single value of b (rank "
        f"{p['line rank']['max']:.0f}), the least-norm fit is exact to {p['line fit']['max']:.0e} "
        f"on its own segment and wrong by up to {p['line error']['max']:.0f} units elsewhere.",
        "",
    ]


def _second(metrics: Mapping[str, Any]) -> list[str]:
    p = metrics["propositions"]["2"]
    return [
        "**Proposition 2** is false as written: a 2-64-64-1 network in which two units pass x "
        "through both layers equals y to within "
        f"{p['represented']['max']:.0e} units on the whole grid. It is therefore a minimiser on "
        "every segment at once, but training does not find it. The following is true: on D_i the "
        "error of the average is a fifth of expert i's own error plus a fifth of the sum of the "
        "other experts' errors, which no training controls there. The identity holds to "
        f"{p['identity']['max']:.0e}. The mean error of the average is {p['mixture']['mean']:.1f} "
        f"units; expert i's own part is {p['own']['mean']:.3f}, and the part of the other experts "
        f"is {p['others']['mean']:.1f}.",
        "",
    ]


def _third(metrics: Mapping[str, Any]) -> list[str]:
    p = metrics["propositions"]["3"]
    tried = [
        f"with δ = {p[f'{n} delta']['max']:.1f} and ε = {p[f'{n} epsilon']['max']:.0f} units, the "
        f"largest error is {p[f'{n} of bound']['max']:.2f} times the bound, and up to "
        f"{p[f'{n} of epsilon']['max']:.1f} ε for weights that sum to 1"
        for n in ("near", "rough")
    ]
    return [
        "**Proposition 3**, corrected: |mix − y| ≤ δ + ε Σ|α_i|, where δ is the base's largest "
        "error and ε bounds the residuals by construction (ε · tanh). It was tested on the whole "
        f"grid with {p['weights']['max']:.0f} weights α per seed: {tried[0]}; {tried[1]}. "
        f"α = (2, −1) reaches {p['opposed']['max']:.0f} ε. A bound observed on an expert's own "
        "segment does not hold elsewhere: experts 0.1 · MLP on the exact base stay within "
        f"{p['home']['max']:.2f} units on their own segments and reach {p['away']['max']:.1f} "
        "outside them.",
        "",
    ]
