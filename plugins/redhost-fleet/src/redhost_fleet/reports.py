"""The replicas' reports as the store has them: read within bounds, and refused by name.

Any process that may write under ``replicas/`` may write anything there. A report counts only if its
file is regular and small, its fields have their types, and its counts are possible.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from redhost_fleet.documents import (
    Comparison,
    RefusedFileError,
    ReplicaReport,
    StageEntry,
    decode,
)
from redhost_fleet.storage import Storage

__all__ = [
    "LARGEST_REPORT",
    "RefusedReport",
    "Reports",
    "impossible",
    "read_report",
    "read_reports",
]

LARGEST_REPORT = 2**20
MOST_REPORTS = 1000

CLOCK_ERROR = 300.0
"""Seconds by which the clocks of two machines may differ."""

MOST_A_SECOND = 100_000
"""Texts that no replica answers in a second."""

_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,99})\.json")


@dataclass(frozen=True, kw_only=True)
class RefusedReport:
    """A file under ``replicas/`` that does not count.

    Attributes:
        file: Its name, as one line.
        reason: What is refused.
    """

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Reports:
    """What the store has under ``replicas/``.

    Attributes:
        reports: The reports, ordered by id.
        refused: The other files.
    """

    reports: tuple[ReplicaReport, ...]
    refused: tuple[RefusedReport, ...]


def read_reports(storage: Storage, canary: StageEntry | None = None) -> Reports:
    """Read the reports of a store, and refuse those that cannot be a replica's.

    Args:
        storage: The store.
        canary: The canary's entry, if counts are to be compared with the time since then.

    Raises:
        StoreError: If the store cannot be reached.
    """
    names = storage.names("replicas")
    reports, refused = list[ReplicaReport](), list[RefusedReport]()
    for name in names[:MOST_REPORTS]:
        try:
            report = read_report(storage, name, canary)
        except RefusedFileError as e:
            refused.append(RefusedReport(file=ascii(name)[1:-1], reason=e.reason))
            continue
        if report is not None:
            reports.append(report)
    if (left := len(names) - MOST_REPORTS) > 0:
        reason = f"{left:,} files after the first {MOST_REPORTS:,} are not read"
        refused.append(RefusedReport(file="replicas", reason=reason))
    return Reports(reports=tuple(reports), refused=tuple(refused))


def read_report(
    storage: Storage, name: str, canary: StageEntry | None = None
) -> ReplicaReport | None:
    """Return the report in a file under ``replicas/``; None if there is no such file.

    Raises:
        RefusedFileError: If it cannot be the report of that replica.
        StoreError: If the store cannot be reached.
    """
    if (match := _FILE.fullmatch(name)) is None:
        raise RefusedFileError("no replica's report", expected="ID.json")
    data = storage.read(f"replicas/{name}", limit=LARGEST_REPORT)
    if data is None:
        return None
    report = decode(data, ReplicaReport, where="it")
    if report.replica != match[1]:
        raise RefusedFileError("another replica's id", expected=match[1], found=report.replica)
    if problem := impossible(report, canary):
        raise RefusedFileError("impossible", found=problem)
    return report


def impossible(report: ReplicaReport, canary: StageEntry | None = None) -> str:
    """Return why no replica can have measured what a report says; empty if one can.

    Args:
        report: The report.
        canary: The canary's entry, if counts are to be compared with the time since then.
    """
    now = datetime.now(UTC)
    if (early := (datetime.fromisoformat(report.when) - now).total_seconds()) > CLOCK_ERROR:
        return f"it was written in {early:,.0f} s from now"
    if report.shares and not math.isclose(sum(report.shares.values()), 1, abs_tol=1e-3):
        return f"shares that sum to {sum(report.shares.values()):.3f}"
    for expert, counts in report.comparisons.items():
        if problem := _inconsistent(counts):
            return f"{problem}, of expert {expert}"
    if canary is None or report.canary != canary.sequence:
        return ""
    # The entry's time is by another machine's clock.
    seconds = (now - datetime.fromisoformat(canary.when)).total_seconds()
    most = int(MOST_A_SECOND * (max(0.0, seconds) + CLOCK_ERROR))
    every = sum(report.comparisons.values(), Comparison())
    for what, texts in (
        ("labelled texts", every.better + every.worse + every.same),
        ("texts", every.texts),
    ):
        if texts > most:
            return f"{texts:,} {what}, of at most {most:,} since the canary began"
    return ""


def _inconsistent(counts: Comparison) -> str:
    """Return which count is more than what it is a part of; empty if none is."""
    for part, whole in (
        ("agree", "texts"),
        ("declined", "texts"),
        ("canary_declined", "texts"),
        ("only_declined", "declined"),
        ("only_canary_declined", "canary_declined"),
    ):
        if (n := getattr(counts, part)) > (of := getattr(counts, whole)):
            return f"{part} {n:,} of {whole} {of:,}"
    return ""
