"""Decide about a canary by labelled texts: promote it, end it, or let it continue."""

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
"""Drift from which the history records it, in standard deviations, and the texts required."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Error rates and margins of the decision.

    Attributes:
        alarm: Probability that a canary that is no worse is ended, at most, 0–1.
        miss: Probability that a canary that is worse by the margin is promoted, at most, 0–1.
        margin: Accepted loss of accuracy, 0–1.
        declines: Increase of the share of declined texts up to which it is promoted
            automatically, 0–1.
    """

    alarm: float = 0.01
    miss: float = 0.01
    margin: float = 0.01
    declines: float = 0.05

    def __post_init__(self) -> None:
        """Check that each is more than 0 and less than 1.

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
        harm: Evidence that it is worse: it is ended at 1 / alarm.
        no_harm: Evidence that it is not worse by the margin: it is promoted at 1 / miss.
        labelled: Number of texts with a right label.
    """

    action: Literal["promote", "end", "hold"]
    why: str
    harm: float
    no_harm: float
    labelled: int


def decide(
    counts: Mapping[str, Comparison], limits: Limits | None = None, *, experts: int
) -> Decision:
    """Decide whether to promote, end or hold a canary.

    Args:
        counts: Comparison of its answers with production's on the same texts, by expert.
        experts: Maximum number of experts in the counts, fixed from the beginning.
        limits: Error rates and margins of the decision.
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
    """Decide about a canary once, and carry the decision out; the history has the reason.

    Args:
        fleet: The fleet.
        limits: Error rates and margins of the decision.

    Returns:
        The decision and the canary's entry; None if there is no canary.

    Raises:
        StaleGenerationError: If another writer moved a stage meanwhile.
        StoreError: If there is no store of a fleet, or it cannot be reached.
    """
    fleet.require()
    production, entry = (fleet.stages[stage].last() for stage in (PRODUCTION, CANARY))
    if entry is None or entry.generation is None:
        return None
    reports = fleet.read_reports(entry).reports
    refused, drifted = dict[str, str](), dict[str, float]()
    served = 0 if production is None else production.sequence
    for report in reports:
        if report.canary == entry.sequence and report.refused:
            refused[report.replica] = report.refused
        for expert, drift in report.drift.items():
            if drift.texts >= FEWEST and drift.distance >= DRIFTED:
                drifted[expert] = max(drift.distance, drifted.get(expert, 0.0))
    both = (entry.sequence, served)
    counted = {r.replica: r.comparisons for r in reports if (r.canary, r.production) == both}
    document = None if production is None else fleet.document(production.generation or 0)
    # One package per expert, plus one for the backbone's column even if the backbone is on a hub.
    experts = len(_sum(counted)) if document is None else len(document.packages) + 1
    decision = _agreed(counted, limits, experts=experts, replicas=len(reports))
    if drifted:  # both read the same texts: report it, but do not decide by it
        far = ", ".join(f"{expert} by {d:.2f}" for expert, d in sorted(drifted.items()))
        decision = replace(decision, why=f"{decision.why}; texts have drifted from cards: {far}")
    for replica, reason in sorted(refused.items())[:1]:  # then no replica should serve it
        decision = replace(decision, action="end", why=f"{replica} does not run it: {reason}")
    if production is not None and production.generation == entry.generation:
        decision = replace(decision, action="end", why="it is production")
    if decision.action == "promote":
        fleet.promote(entry.generation, after=production, why=decision.why)
    if decision.action != "hold":
        fleet.promote(None, stage=CANARY, after=entry, why=f"{decision.action}: {decision.why}")
    return decision, entry


def _agreed(
    counted: Mapping[str, Mapping[str, Comparison]],
    limits: Limits | None,
    *,
    experts: int,
    replicas: int,
) -> Decision:
    """Decide by all replicas' counts; promote only if that depends on no single replica.

    Args:
        counted: By replica: its counts by expert.
        limits: Error rates and margins of the decision.
        experts: As in `decide`.
        replicas: Number of replicas that report, with counts or without.
    """
    decision = decide(_sum(counted), limits, experts=experts)
    if decision.action != "promote" or replicas == 1:
        return decision
    for replica in counted:
        others = {name: counts for name, counts in counted.items() if name != replica}
        if decide(_sum(others), limits, experts=experts).action != "promote":
            why = f"{decision.why}; but not without the counts of {replica} alone"
            return replace(decision, action="hold", why=why)
    return decision


def _sum(counted: Mapping[str, Mapping[str, Comparison]]) -> dict[str, Comparison]:
    """Return the counts of all replicas by expert."""
    every: dict[str, Comparison] = {}
    for counts in counted.values():
        for expert, count in counts.items():
            every[expert] = every.get(expert, Comparison()) + count
    return every


def _times(log_evidence: float) -> str:
    return f"{math.exp(min(log_evidence, 700.0)):.3g}"
