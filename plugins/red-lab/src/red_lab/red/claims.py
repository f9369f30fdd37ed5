"""Judge the seed's claims about RED by the figures of a run.

A claim holds, does not hold, or was not measured. A rule over metrics.json decides (seed 001, 4.1
and 4.4.4). In the table of advantages (4.4.5) the seed's claim stands beside the measured result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from red_lab.red.experts import NAMES
from red_lab.red.measure import SHARES

__all__ = [
    "COLUMNS",
    "advantages",
    "boundary",
    "claims",
    "difficulty",
    "drift",
    "errors",
    "left",
    "spread",
    "wrong_routes",
]

PLACE = SHARES.index(0.3)
"""Index in the curves of the q that the sentences refer to."""

LEVEL = 0.005
"""Accuracies that differ by at most this, half a point, count as equal."""


def claims(metrics: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return for each claim whether it holds, and why."""
    return {
        "4.1, difficulty increases across ranges": difficulty(metrics),
        "4.1, errors can be interpreted": errors(metrics),
        "4.4.4 A, experts refine h and prevent drift": drift(metrics),
        "4.4.4 B, routing errors cost little, since residuals are small": wrong_routes(metrics),
        "4.4.4 C, experts help each other on boundary samples": boundary(metrics),
    }


def difficulty(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Judge whether the base answers every range worse than the preceding one."""
    accuracies = _ranges(metrics, "global")
    named = ", ".join(f"{d} {a:.3f}" for d, a in accuracies.items())
    hardest = min(accuracies, key=lambda d: accuracies[d])
    easiest = max(accuracies, key=lambda d: accuracies[d])
    why = f"Accuracy of the base alone: {named}. Easiest: {easiest}; hardest: {hardest}."
    return _holds(all(a > b for a, b in pairwise(accuracies.values()))), why


def errors(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Judge whether most wrong answers of RED are off by one or by ten: an error in one digit."""
    found = metrics["systems"]["red"].get("errors")
    if found is None:
        return "not measured", "This run predates the measurement of distances to the true answer."
    if not found["wrong"]:
        return "not measured", "RED gives no wrong answer."
    why = (
        f"Of RED's {found['wrong']} wrong answers {found['one']:.1%} are off by one and "
        f"{found['ten']:.1%} by ten. Half of them are off by at most {found['median']:.0f}, nine "
        f"in ten by at most {found['p90']:.0f}, the worst by {found['most']}."
    )
    return _holds(found["one"] + found["ten"] > 1 / 2), why


def drift(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Judge whether every Δ is shorter than h, and report how h and its answers change."""
    sizes = metrics["relative_size"]
    longer = [d for d, size in sizes.items() if size >= 1]
    why = f"‖Δ‖/‖h‖ is {min(sizes.values()):.2f} to {max(sizes.values()):.2f}: "
    why += f"{len(longer)} of {len(sizes)} residuals are as long as h or longer."
    if "cosine" not in metrics:
        return _holds(not longer), f"{why} The angle between h and ĥ was not measured in this run."
    turned = ", ".join(f"{d} {c:.2f}" for d, c in metrics["cosine"].items() if c is not None)
    why += f" Mean cosine of h and ĥ: {turned}."
    shares = {name: s for name, s in metrics["base_kept"].items() if s is not None}
    if shares:
        listed = ", ".join(f"{name} {s:.1%}" for name, s in shares.items())
        why += f" Share of the base's correct answers that stay correct: {listed}."
    return _holds(not longer), why


def wrong_routes(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Judge whether RED keeps more of its accuracy than the mixture over the same experts."""
    titles = {"flipped": "routes flipped at random", "worst": "mass moved by an adversary"}
    parts, better = [], []
    for kind, title in titles.items():
        red, mixture = (left(metrics, kind, name) for name in ("RED", "MoE, residual"))
        better.append(red > mixture + LEVEL)
        parts.append(f"with {title} {red:.1%} against {mixture:.1%}, {_than(red, mixture)}")
    why = f"Share of the accuracy that is kept at q = {SHARES[PLACE]:g}, RED against the mixture "
    return _holds(all(better)), f"{why}over the same experts: {'; '.join(parts)}."


def boundary(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Judge whether RED near range borders beats the mixture and the row's own expert alone."""
    systems = metrics["systems"]
    own, red, mixture = (systems[k]["boundary"] for k in ("oracle", "red", "moe_residual"))
    if red is None:
        return "not measured", "No test question lies near a border."
    why = (
        f"Accuracy on answers within two of a border: RED {red:.3f}, the mixture over the same "
        f"experts {mixture:.3f}, the question's own expert alone (label-informed) {own:.3f}"
    )
    pairs = metrics.get("paired_boundary")
    if pairs:
        listed = "; ".join(
            f"{name} {100 * d['mean']:+.2f} ({100 * d['low']:+.2f} … {100 * d['high']:+.2f})"
            for name, d in pairs.items()
        )
        helped = all(d["low"] > 0 for d in pairs.values())
        return _holds(helped), f"{why}. Differences in points, 95 %: {listed}. {_help(helped)}"
    helped = red > own + LEVEL and red > mixture + LEVEL
    return _holds(helped), f"{why}. {_help(helped)}"


def left(metrics: Mapping[str, Any], kind: str, name: str) -> float:
    """Return the share of a system's accuracy that is left at q = .3; 0 if it has no accuracy."""
    curve: Sequence[float] = metrics["curves"][kind][name]
    return curve[PLACE] / curve[0] if curve[0] else 0.0


def _ranges(metrics: Mapping[str, Any], system: str) -> dict[str, float]:
    domains = metrics["systems"][system]["domains"]
    return {d: domains[d] for d in NAMES if domains[d] is not None}


def _holds(true: bool) -> str:
    return "holds" if true else "does not hold"


def _help(helped: bool) -> str:
    if helped:
        return "Together they answer more than each alone."
    return "The experts do not help each other."


def _than(one: float, other: float) -> str:
    if abs(one - other) <= LEVEL:
        return "equal to within half a point"
    return "more" if one > other else "less"


COLUMNS: Mapping[str, str] = {
    "moe_linear": "MoE, linear",
    "uniform_probabilities_linear": "uniform probabilities, linear",
    "moe_residual": "MoE, residual",
    "red": "RED",
}
"""The seed's three columns, and the mixture over RED's own experts."""

UNIFORM = "uniform_probabilities_linear"


def advantages(metrics: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the table's rows: property → a cell for each system, the seed's claim, the result."""
    stay = {
        title: f", {share:.1%} of the base's correct answers stay correct"
        for title, share in metrics.get("base_kept", {}).items()
        if share is not None
    }
    return {
        "expert interaction": (
            *("Σ α_i p_i", "mean of p_i", "Σ α_i p_i", "softmax(W_c (h + Σ α_i Δ_i))"),
            "direct interpolation, equal mixing, residual correction",
            "by construction",
        ),
        "robustness to routing errors": _robustness(metrics),
        "plug-and-play modularity": (
            *["the same packages, a different router"] * len(COLUMNS),
            "partial, yes, fully",
            "the same for all ([hot swap](../../hotswap/README.md))",
        ),
        "backbone preservation": (
            *(f"frozen{stay.get(title, '')}" for title in COLUMNS.values()),
            "partial, full, full",
            "full for all: the base is frozen before experts are trained",
        ),
        "per range": _balance(metrics),
    }


def spread(system: Mapping[str, Any]) -> float:
    """Return the accuracy of a system's best range minus that of its worst range."""
    known: list[float] = [a for a in system["domains"].values() if a is not None]
    return max(known) - min(known)


def _robustness(metrics: Mapping[str, Any]) -> Sequence[str]:
    kinds = ("flipped", "worst")
    shares = {
        k: [left(metrics, kind, title) for kind in kinds]
        for k, title in COLUMNS.items()
        if k != UNIFORM
    }
    cells = {k: " / ".join(f"{s:.1%}" for s in each) for k, each in shares.items()}
    red = shares.pop("red")
    pairs = [pair for other in shares.values() for pair in zip(red, other, strict=True)]
    better = all(own > other + LEVEL for own, other in pairs)
    came = "as the seed claims" if better else "not as the seed claims"
    return (*(cells.get(k, "no router") for k in COLUMNS), "low, medium, high", came)


def _balance(metrics: Mapping[str, Any]) -> Sequence[str]:
    worst = {k: min(_ranges(metrics, k).values()) for k in COLUMNS}
    cells = [f"{w:.3f}, {spread(metrics['systems'][k]):.3f}" for k, w in worst.items()]
    below = {k for k, w in worst.items() if w < worst["red"] - LEVEL}
    came = "RED's worst range is not the highest"
    if {"moe_linear", UNIFORM} <= below:
        came = "RED's worst range is above that of linear heads"
        came += ", and above that of" if "moe_residual" in below else ", but not above that of"
        came += " a mixture over the same experts"
    return (*cells, "unstable, weak, balanced and strong", came)
