"""The seed's table of advantages (001, 4.4.5), cell by cell: its claim and the measured result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from red_lab.red.claims import LEVEL, PLACE, left
from red_lab.red.experts import NAMES
from red_lab.red.measure import SHARES

__all__ = ["SYSTEMS", "advantages", "spread"]

SYSTEMS: Mapping[str, str] = {
    "moe_linear": "MoE, linear",
    "uniform_probabilities_linear": "uniform probabilities, linear",
    "moe_residual": "MoE, residual",
    "red": "RED",
}
"""The seed's three columns, and the mixture over RED's own experts."""

UNIFORM = "uniform_probabilities_linear"
AS_CLAIMED = {True: "as the seed claims", False: "not as the seed claims"}


def advantages(metrics: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table."""
    head = [*SYSTEMS.values(), "claim of the seed for MoE, uniform, RED", "result"]
    lines = [f"| {' | '.join(['property', *head])} |", "|---" * (len(head) + 1) + "|"]
    rows = (_interaction(), _routes(metrics), _plugged(), _backbone(metrics), _ranges(metrics))
    lines += [f"| {' | '.join(row)} |" for row in rows]
    note = (
        "Robustness to routing errors: the share of its accuracy that a system keeps at "
        f"q = {SHARES[PLACE]:g}, with routes flipped at random / with mass moved by an adversary. "
        "Per range: the accuracy of the worst range, and the difference between the best and the "
        "worst range, of means over random seeds."
    )
    return ["The seed's table of advantages (4.4.5), cell by cell:", "", *lines, "", note, ""]


def spread(system: Mapping[str, Any]) -> float:
    """Return the accuracy of a system's best range minus that of its worst range."""
    known = _known(system)
    return max(known) - min(known)


def _interaction() -> Sequence[str]:
    formulas = ("Σ α_i p_i", "mean of p_i", "Σ α_i p_i", "softmax(W_c (h + Σ α_i Δ_i))")
    claim = "direct interpolation, equal mixing, residual correction"
    return ("expert interaction", *formulas, claim, "by construction")


def _routes(metrics: Mapping[str, Any]) -> Sequence[str]:
    kinds = ("flipped", "worst")
    routed = {k: title for k, title in SYSTEMS.items() if k != UNIFORM}
    shares = {k: [left(metrics, kind, title) for kind in kinds] for k, title in routed.items()}
    cells = [
        "no router" if k == UNIFORM else " / ".join(f"{s:.1%}" for s in shares[k]) for k in SYSTEMS
    ]
    red = shares.pop("red")
    pairs = [pair for other in shares.values() for pair in zip(red, other, strict=True)]
    better = all(own > other + LEVEL for own, other in pairs)
    return ("robustness to routing errors", *cells, "low, medium, high", AS_CLAIMED[better])


def _plugged() -> Sequence[str]:
    cells = ["the same packages, a different router"] * len(SYSTEMS)
    came = "the same for all ([hot swap](../../hotswap/README.md))"
    return ("plug-and-play modularity", *cells, "partial, yes, fully", came)


def _backbone(metrics: Mapping[str, Any]) -> Sequence[str]:
    shares = metrics.get("base_kept", {})
    cells = []
    for title in SYSTEMS.values():
        share = shares.get(title)
        more = "" if share is None else f", {share:.1%} of the base's correct answers stay correct"
        cells.append(f"frozen{more}")
    came = "full for all: the base is frozen before experts are trained"
    return ("backbone preservation", *cells, "partial, full, full", came)


def _ranges(metrics: Mapping[str, Any]) -> Sequence[str]:
    systems = {k: metrics["systems"][k] for k in SYSTEMS}
    cells = [f"{min(_known(s)):.3f}, {spread(s):.3f}" for s in systems.values()]
    worst = {k: min(_known(s)) for k, s in systems.items()}
    below = {k for k, w in worst.items() if w < worst["red"] - LEVEL}
    came = "RED's worst range is not the highest"
    if {"moe_linear", UNIFORM} <= below:
        came = "RED's worst range is above that of linear heads"
        came += ", and above that of" if "moe_residual" in below else ", but not above that of"
        came += " a mixture over the same experts"
    return ("per range", *cells, "unstable, weak, balanced and strong", came)


def _known(system: Mapping[str, Any]) -> list[float]:
    domains = system["domains"]
    return [domains[d] for d in NAMES if domains[d] is not None]
