"""The status of a fleet from its store: stages, replicas, and the lag of each replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import redhost
from redhost_fleet.documents import ReplicaReport, StageEntry
from redhost_fleet.fleet import Fleet
from redhost_fleet.reports import RefusedReport
from redhost_fleet.stages import CANARY, PRODUCTION

__all__ = ["FleetStatus", "ReplicaStatus", "fleet_status", "live_shares", "status_lines"]

LOST_AFTER = 30.0
"""Seconds without a report after which a replica is shown as lost."""


@dataclass(frozen=True, kw_only=True)
class ReplicaStatus:
    """One replica.

    Attributes:
        report: Its last report.
        age: Seconds since that report, by this machine's clock.
        lag: Number of entries of production's log that it has yet to follow.
        lost: Whether its last report is too old.
    """

    report: ReplicaReport
    age: float
    lag: int
    lost: bool


@dataclass(frozen=True, kw_only=True)
class FleetStatus:
    """The status of a fleet.

    Attributes:
        production: The last entry of production's log; None before the first.
        canary: The last entry of the canary's log.
        replicas: The replicas, ordered by id.
        refused: Files among the reports that do not count.
    """

    production: StageEntry | None
    canary: StageEntry | None
    replicas: tuple[ReplicaStatus, ...]
    refused: tuple[RefusedReport, ...] = ()


def fleet_status(fleet: Fleet) -> FleetStatus:
    """Return a fleet's current status.

    Raises:
        StoreError: If the store cannot be reached.
    """
    fleet.require()
    production, canary = (fleet.stages[stage].last() for stage in (PRODUCTION, CANARY))
    last = 0 if production is None else production.sequence
    now = datetime.now(UTC)
    found, replicas = fleet.read_reports(canary), []
    for report in found.reports:
        age = (now - datetime.fromisoformat(report.when)).total_seconds()
        lag = max(0, last - report.production)  # it may have followed an entry since
        lost = age > LOST_AFTER
        replicas.append(ReplicaStatus(report=report, age=round(age, 1), lag=lag, lost=lost))
    return FleetStatus(
        production=production, canary=canary, replicas=tuple(replicas), refused=found.refused
    )


def live_shares(status: FleetStatus) -> redhost.plugins.LiveShares | None:
    """Return the experts' live shares: the mean of the replicas' estimates, weighted by texts.

    Replicas that are lost, or serve another generation than production, are left out, and so are
    those that name other experts than most do.

    Returns:
        The shares; None if no replica has received a text.
    """
    number = None if status.production is None else status.production.generation
    seen = [
        r.report
        for r in status.replicas
        if not r.lost and r.report.generation == number and r.report.shares
    ]
    named = Counter(frozenset(r.shares) for r in seen).most_common(1)
    seen = [r for r in seen if r.shares.keys() == named[0][0]]
    texts = sum(r.texts for r in seen)
    if number is None or not texts:
        return None
    shares = dict.fromkeys(seen[0].shares, 0.0)
    for report in seen:
        for expert, share in report.shares.items():
            shares[expert] += share * report.texts
    means = {expert: min(1.0, share / texts) for expert, share in shares.items()}
    return redhost.plugins.LiveShares(generation=number, shares=means, texts=texts)


def status_lines(status: FleetStatus) -> Iterator[str]:
    """Yield a fleet's status as text, line by line."""
    for stage, entry in ((PRODUCTION, status.production), (CANARY, status.canary)):
        if entry is None or entry.generation is None:
            yield f"{stage:<11} none"
            continue
        share = f"  {entry.share:.0%}" if entry.share else ""
        share += "  mirrored" if entry.mirror else ""
        yield f"{stage:<11} generation {entry.generation}{share}  {entry.when[:19]}  by {entry.by}"
    yield ""
    yield f"{'replica':<32} {'state':<8} {'serves':>6} {'canary':>6} {'lag':>4} {'report':>8}"
    for replica in status.replicas:
        report = replica.report
        state = "lost" if replica.lost else report.state
        yield (
            f"{report.replica:<32} {state:<8} {report.generation or '-':>6} "
            f"{report.trial or '-':>6} {replica.lag:>4} {replica.age:>6.0f} s"
        )
        if report.reason:
            yield f"    {report.reason}"
        for expert in sorted(report.shares, key=lambda i: -report.shares[i]):
            live, prior = report.shares[expert], report.priors.get(expert, 0.0)
            line = f"    {expert:<14} {live:>4.0%} of {report.texts:,} texts, {prior:.0%} expected"
            drift = report.drift.get(expert)
            yield line if drift is None else f"{line}, drift {drift.distance:.2f}"
    if status.refused:
        yield ""
        yield "refused reports, which do not count:"
    for refused in status.refused:
        yield f"    {refused.file}: {refused.reason}"
