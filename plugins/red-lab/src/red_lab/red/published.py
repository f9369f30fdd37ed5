"""Compare a run with the published figures of RED's experiment (seed 001; the author's table)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.red.summary import key_of

__all__ = ["PUBLISHED", "published_table"]

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "addition": {
        "global head": 0.550,
        "uniform probabilities, linear": 0.269,
        "MoE, linear": 0.858,
        "RED": 0.9725,
    },
    "mixed": {
        "global head": 0.354,
        "uniform probabilities, linear": 0.011,
        "MoE, linear": 0.534,
        "RED": 0.758,
    },
}
"""Accuracy by task and system, under the protocol ``seed``."""

RANKS = {"D/2": 0.969, "D/4": 0.965, "D/8": 0.951}
"""RED's accuracy on additions by rank."""

SETTING = (
    "Published: Qwen3-0.6B in float16, top 2 blocks, 8 epochs in every stage, one RTX 3060 Ti, "
    "three to four hours, less than 6.5 GB; router accuracy .96 to .97"
)


def published_table(metrics: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of published figures and figures measured here."""
    plan, systems = metrics["plan"], metrics["systems"]
    theirs = PUBLISHED[plan["task"]]
    ours = {name: systems[key_of(name)]["accuracy"]["mean"] for name in theirs}
    rows = [(name, theirs[name], ours[name]) for name in theirs]
    rows.append(("RED minus MoE, linear", _gain(theirs), _gain(ours)))
    lines = ["| system | published | here | points |", "|---|---|---|---|"]
    lines += [f"| {name} | {p:.4g} | {own:.4f} | {100 * (own - p):+.1f} |" for name, p, own in rows]
    protocol = "" if plan["protocol"] == "seed" else ", all under the protocol `seed`, not this one"
    ranks = ""
    if plan["task"] == "addition":
        ranks = "; RED by rank " + ", ".join(f"{name} {a}" for name, a in RANKS.items())
    minutes = sum(metrics["seconds"].values()) / 60
    here = f"{plan['backbone']}, {minutes:.0f} minutes per random seed, device {plan['device']}"
    note = f"{SETTING}{ranks}{protocol}. Here: {here}."
    return [*lines, "", note, ""]


def _gain(accuracies: Mapping[str, float]) -> float:
    return accuracies["RED"] - accuracies["MoE, linear"]
