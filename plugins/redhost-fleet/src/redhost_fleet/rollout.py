"""A canary's end: it becomes production, or goes, or runs on, by what labelled texts say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import redhost
from redhost_fleet.documents import Comparison, StageEntry
from redhost_fleet.evidence import (
    evidence_of_declining,
    evidence_of_harm,
    evidence_of_no_harm,
    harm_of,
)
from redhost_fleet.fleet import Fleet
from redhost_fleet.stages import CANARY, PRODUCTION

__all__ = ["DRIFTED", "Decision", "Limits", "decide", "judge"]

DRIFTED, FEWEST = 0.3, 200
"""Drift that the history names, in standard deviations, and the texts that it takes."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may go wrong, and how often.

    Attributes:
        alarm: How often a canary that is no worse may be taken away, 0–1.
        miss: How often one that is worse by the margin may become production, 0–1.
        margin: Accuracy that may be lost, 0–1.
        declines: How many more of the texts it may decline and be promoted by itself, 0–1.
    """

    alarm: float = 0.01
    miss: float = 0.01
    margin: float = 0.01
    declines: float = 0.05

    def __post_init__(self) -> None:
        """Check that each is a share.

        Raises:
            UsageError: If one is not.
        """
        for name in ("alarm", "miss", "margin", "declines"):
            if not 0 < getattr(self, name) < 1:
                raise redhost.UsageError(
                    name, expected="more than 0 and less than 1", found=str(getattr(self, name))
                )


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do with a canary.

    Attributes:
        action: ``promote``, ``end`` or ``hold``.
        why: The figures, as one line.
        harm: Evidence that it is worse: it ends at 1 / alarm.
        no_harm: Evidence that it is not worse by the margin: it is promoted at 1 / miss.
        labelled: Texts with a right label.
    """

    action: Literal["promote", "end", "hold"]
    why: str
    harm: float
    no_harm: float
    labelled: int


def decide(
    counts: Mapping[str, Comparison], limits: Limits | None = None, *, experts: int
) -> Decision:
    """Decide what becomes of a canary.

    Args:
        counts: What it and production answered to the same texts, by expert.
        experts: How many of these there may be, from the beginning.
        limits: How often the decision may be wrong.
    """
    limits = limits or Limits()
    harm = evidence_of_harm(counts, experts=experts)
    no_harm = evidence_of_no_harm(counts, margin=limits.margin)
    every = sum(counts.values(), Comparison())
    labelled = every.better + every.worse + every.same
    gain = 100 * (every.better - every.worse) / labelled if labelled else 0.0
    figures = (
        f"{gain:+.1f} points on {labelled} labelled texts "
        f"({every.better} better, {every.worse} worse)"
    )
    if every.texts:
        figures += (
            f", declines {every.canary_declined / every.texts:.1%} of {every.texts} texts "
            f"(production {every.declined / every.texts:.1%})"
        )
    if harm >= math.log(1 / limits.alarm):
        expert = max(counts, key=lambda i: harm_of(counts[i]))
        figures = f"{figures}, most of it on texts of {expert}"
        action: Literal["promote", "end", "hold"] = "end"
    elif evidence_of_declining(counts, margin=limits.declines) >= math.log(1 / limits.alarm):
        figures = f"{figures}, which is for people to decide"
        action = "hold"
    else:
        action = "promote" if no_harm >= math.log(1 / limits.miss) else "hold"
    return Decision(
        action=action,
        why=f"{figures}; evidence of harm {_times(harm)}, of none {_times(no_harm)}",
        harm=math.exp(min(harm, 700.0)),
        no_harm=math.exp(min(no_harm, 700.0)),
        labelled=labelled,
    )


def judge(fleet: Fleet, limits: Limits | None = None) -> tuple[Decision, StageEntry] | None:
    """Look at a canary once, and do what is to be done; the history has the reason.

    Args:
        fleet: The fleet.
        limits: How often the decision may be wrong.

    Returns:
        The decision and the canary's entry; None where there is no canary.

    Raises:
        StaleGenerationError: If another writer moved a stage meanwhile.
        StoreError: If there is no store of a fleet, or it cannot be reached.
    """
    fleet.require()
    production, entry = (fleet.stages[stage].last() for stage in (PRODUCTION, CANARY))
    if entry is None or entry.generation is None:
        return None
    counts: dict[str, Comparison] = {}
    refused, drifted = dict[str, str](), dict[str, float]()
    served = 0 if production is None else production.sequence
    for report in fleet.reports():
        if report.canary == entry.sequence and report.refused:
            refused[report.replica] = report.refused
        for expert, drift in report.drift.items():
            if drift.texts >= FEWEST and drift.distance >= DRIFTED:
                drifted[expert] = max(drift.distance, drifted.get(expert, 0.0))
        if (report.canary, report.production) == (entry.sequence, served):
            for expert, some in report.comparisons.items():
                counts[expert] = counts.get(expert, Comparison()) + some
    document = None if production is None else fleet.document(production.generation or 0)
    # A package for each expert, one for the column of the backbone, which a hub may have instead.
    experts = len(counts) if document is None else len(document.packages) + 1
    decision = decide(counts, limits, experts=experts)
    if drifted:  # both read the same texts: no reason to end either, and one to look at both
        far = ", ".join(f"{expert} by {d:.2f}" for expert, d in sorted(drifted.items()))
        decision = replace(decision, why=f"{decision.why}; texts have drifted from cards: {far}")
    for replica, reason in sorted(refused.items())[:1]:  # what one cannot run, none should serve
        decision = replace(decision, action="end", why=f"{replica} does not run it: {reason}")
    if production is not None and production.generation == entry.generation:
        decision = replace(decision, action="end", why="it is production")
    if decision.action == "promote":
        fleet.promote(entry.generation, after=production, why=decision.why)
    if decision.action != "hold":
        fleet.promote(None, stage=CANARY, after=entry, why=f"{decision.action}: {decision.why}")
    return decision, entry


def _times(log_evidence: float) -> str:
    return f"{math.exp(min(log_evidence, 700.0)):.3g}"
