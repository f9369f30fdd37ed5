"""What the toy experiments say, sentence by sentence, every number read from the metrics."""

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
    "B, each at home": ("B", "oracle"),
    "B, outputs averaged": ("B", "uniform"),
    "B, parameters averaged": ("B", "parameters"),
    "B, all saw all: outputs": ("B all", "uniform"),
    "B, all saw all, one initialisation: parameters": ("B all, shared start", "parameters"),
    "B, all saw all, one trained network: parameters": ("B all, trained start", "parameters"),
    "C, base (.5, .5) alone": ("C scaled, exact", "alone"),
    "C, base (.5, .5), own expert": ("C scaled, exact", "oracle"),
    "C, base (.5, .5), all mixed": ("C scaled, exact", "uniform"),
    "C, base (.49, .5) alone": ("C scaled, near", "alone"),
    "C, base (.49, .5), own expert": ("C scaled, near", "oracle"),
    "C, base (.49, .5), all mixed": ("C scaled, near", "uniform"),
    "C, base (.4, .4) + .05 alone": ("C scaled, rough", "alone"),
    "C, base (.4, .4) + .05, own expert": ("C scaled, rough", "oracle"),
    "C, base (.4, .4) + .05, all mixed": ("C scaled, rough", "uniform"),
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
        f"**A.** Condition numbers of the Hessians: {conditions}. Plain SGD is slowest on the last "
        f"segment: an error of up to {last:.2f} units is left there, where least squares has none.",
        "",
        "**B.** The averages fail because of where the experts were trained, not because outputs "
        "cannot be averaged: the outputs of experts that all saw all segments can. Parameters can "
        "be averaged safely where the experts go on from one trained network; one initialisation "
        "is not enough to rely on.",
        "",
        *_residual(systems),
        "The bus works on features: the LayerNorm of the base's prediction, one number, is "
        f"{metrics['scalar_norm']:.0f} at every point, so experts fed with it would see nothing.",
        "",
    ]


def _residual(systems: Mapping[str, Any]) -> list[str]:
    """Say how far C's uniform mixture is off: rounding forgives half a unit and no more."""
    worst = {
        name: max(
            c["max"] for p, c in systems[f"C scaled, {name}"]["uniform"].items() if p != "off"
        )
        for name in ("exact", "near", "rough")
    }
    return [
        "**C.** Largest error of the uniform mixture on the segments, in units of the sum, over "
        f"all seeds: exact base {worst['exact']:.2f}, base (.49, .5) {worst['near']:.2f}, base "
        f"(.4, .4) + .05 {worst['rough']:.2f}. Rounding forgives half a unit, so a base that is "
        "off by up to two units mixes right in most draws and not in all, and one that is off by "
        "up to thirty does not, though its experts are as right at home: what mixes is a right "
        "base with small residuals, not the residual form. (A base of (.49, .5) is off by exactly "
        "half a unit where a = 25; there rounding decides.)",
        "",
    ]


def _first(metrics: Mapping[str, Any]) -> list[str]:
    p = metrics["propositions"]["1"]
    return [
        "**Proposition 1**, put right: with full column rank on each segment and no noise, all "
        "linear experts have one minimiser. Rank "
        f"{p['rank']['min']:.0f} on every segment; fits differ from (½, ½, 0) by at most "
        f"{p['apart']['max']:.0e}. With noise of one unit on the targets they differ from each "
        f"other by up to {p['noisy apart']['max']:.3f} and are up to {p['noisy error']['max']:.1f} "
        "units wrong away from home. On segments of one value of b (rank "
        f"{p['line rank']['max']:.0f}) the least-norm fit is exact to {p['line fit']['max']:.0e} "
        f"at home and up to {p['line error']['max']:.0f} units wrong elsewhere.",
        "",
    ]


def _second(metrics: Mapping[str, Any]) -> list[str]:
    p = metrics["propositions"]["2"]
    return [
        "**Proposition 2** is false as written: a network 2-64-64-1 with two units that carry x "
        "through is y to within "
        f"{p['represented']['max']:.0e} units on the whole grid, so it is a minimiser on every "
        "segment at once; training does not find it. What is true: on D_i the average's error is "
        "a fifth of expert i's own plus a fifth of the sum of the others', whose values there no "
        f"training controls. The identity holds to {p['identity']['max']:.0e}; of a mean error of "
        f"{p['mixture']['mean']:.1f} units the own part is {p['own']['mean']:.3f} and the others' "
        f"part {p['others']['mean']:.1f}.",
        "",
    ]


def _third(metrics: Mapping[str, Any]) -> list[str]:
    p = metrics["propositions"]["3"]
    tried = [
        f"with δ = {p[f'{n} delta']['max']:.1f} and ε = {p[f'{n} epsilon']['max']:.0f} units the "
        f"largest error is {p[f'{n} of bound']['max']:.2f} of the bound, and with weights that "
        f"sum to 1 up to {p[f'{n} of epsilon']['max']:.1f} ε"
        for n in ("near", "rough")
    ]
    return [
        "**Proposition 3**, put right: |mix − y| ≤ δ + ε Σ|α_i|, with δ the base's error and ε a "
        "bound by construction (ε · tanh). Tried with "
        f"{p['weights']['max']:.0f} weights α a seed on the whole grid: {tried[0]}; {tried[1]}. "
        f"α = (2, −1) reaches {p['opposed']['max']:.0f} ε. A bound seen at home is none elsewhere: "
        "experts 0.1 · MLP on the exact base stay within "
        f"{p['home']['max']:.2f} units on their segments and reach {p['away']['max']:.1f} off "
        "them.",
        "",
    ]
