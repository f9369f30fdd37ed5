"""A replica: polls the stages' logs, and serves their generations once they are complete locally.

An error leaves the served generation unchanged: a store that does not answer, a generation that is
incomplete there, one that this machine cannot run. The replica reports the error; temporary errors
are retried. A replica also starts and answers without the store.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic, time

import msgspec

import redhost
from redhost_fleet.documents import Comparison, ReplicaReport, StageEntry, clipped, now
from redhost_fleet.fleet import REVOKED, Fleet
from redhost_fleet.reports import impossible
from redhost_fleet.stages import CANARY, PRODUCTION, STAGES

__all__ = ["Follower", "replica_id"]

log = logging.getLogger("redhost.fleet")

EVERY = 0.5
"""Seconds between two polls; each is one small read per stage."""
Trial = Callable[[StageEntry, redhost.ComposedModel | None, Mapping[str, Comparison]], None]
"""Starts a trial, or ends one."""

REPORT_EVERY = 5.0
"""Seconds between two reports."""
PASSING = (
    redhost.errors.StoreError,
    redhost.errors.SwapInProgressError,
    redhost.errors.LockHeldError,
)
"""Temporary errors: the next poll may succeed."""


def replica_id(where: str) -> str:
    """Return an id that a replica keeps over restarts: its machine and its place there.

    Args:
        where: An address or a home that no other replica of the machine has.
    """
    machine = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:60] or "replica"
    return f"{machine}-{hashlib.sha256(where.encode()).hexdigest()[:8]}"


@dataclass
class _Position:
    """A replica's position in a log.

    Attributes:
        seen: The last entry that it followed or refused; None before it has read the log.
        refused: Why it does not serve that entry's generation.
        unreachable: Why it could not read the log, or not yet follow it; it retries.
    """

    seen: int | None = None
    refused: str = ""
    unreachable: str = ""

    @property
    def trouble(self) -> str:
        return self.unreachable or self.refused


class Follower(threading.Thread):
    """Follows a fleet until it is stopped.

    Args:
        live: The live host that answers.
        fleet: The fleet to follow.
        where: The replica's address, or its home.
        every: Seconds between two polls.
        swap: Serves a generation of the home; by default `live.swap`.
        trial: Called with the entry of a canary, its generation (None for none), and the counts
            from before a restart.
        observe: Adds further data to a report.
        recall: Leaves what is revoked; by default `live.recall`.
    """

    def __init__(
        self,
        live: redhost.Live,
        fleet: Fleet,
        *,
        where: str,
        every: float = EVERY,
        swap: Callable[[int], object] | None = None,
        trial: Trial = lambda *_: None,
        observe: Callable[[ReplicaReport], ReplicaReport] = lambda report: report,
        recall: Callable[[], redhost.RedhostError | None] | None = None,
    ) -> None:
        super().__init__(name="redhost-follower", daemon=True)
        self.live, self.fleet, self.every = live, fleet, every
        self._swap, self._trial, self._observe = swap or live.swap, trial, observe
        self._recall = recall or live.recall
        self._ended = threading.Event()
        self._positions = {name: _Position() for name in (*STAGES, REVOKED)}
        self._fetched: bytes | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._leaving = False
        self._reported = self._checked = -REPORT_EVERY
        self._earlier: ReplicaReport | None = None
        self._remembers = False
        self._latest = ReplicaReport(
            replica=replica_id(where),
            url=where if "://" in where else "",
            pid=os.getpid(),
            started=now(),
        )

    @property
    def latest(self) -> ReplicaReport:
        """The replica's current report."""
        positions, serving = self._positions, self.live.generation
        reason = "; ".join(dict.fromkeys(filter(None, (p.trouble for p in positions.values()))))
        known = msgspec.structs.replace(
            self._latest,
            when=now(),
            generation=serving,
            production=positions[PRODUCTION].seen or 0,
            canary=positions[CANARY].seen or 0,
            state="behind" if reason else "serving" if serving is not None else "waiting",
            reason=clipped(reason),
            refused=clipped(positions[CANARY].refused),
        )
        return self._observe(known)

    def run(self) -> None:
        """Poll repeatedly; errors are logged, never raised."""
        while True:
            try:
                self.look()
            except BaseException:  # serving and following must continue after any error
                log.exception("cannot follow %s", self.fleet.storage.url)
            if self._ended.wait(self.every):
                return

    def stop(self) -> None:
        """Stop polling; the served generation continues to answer."""
        self._ended.set()
        if self.is_alive():
            self.join()

    def look(self) -> None:
        """Poll both logs once, follow new entries, and report periodically."""
        before = [(p.seen, p.trouble) for p in self._positions.values()]
        self._read_revoked()
        self._follow(PRODUCTION, self._serve)
        self._follow(CANARY, self._run_trial)
        if self._leaving:
            self._leave_revoked()
        moved = before != [(p.seen, p.trouble) for p in self._positions.values()]
        if moved or monotonic() - self._reported > REPORT_EVERY:
            self._report()

    def _read_revoked(self) -> None:
        """Record what the fleet knows to be revoked; if that is new, follow the logs anew."""
        position, host = self._positions[REVOKED], self.live.host
        try:
            self._fetched = self.fleet.pull_revoked(host.generations, seen=self._fetched)
            if (stamp := _stamp(host.store.folder.with_name(REVOKED))) != self._stamp:
                self._stamp, self._leaving = stamp, True
                self._positions[PRODUCTION].seen = None
                if self._is_trial_refused():
                    self._positions[CANARY].seen = None
            position.unreachable = ""
        except PASSING as e:
            if position.unreachable != e.reason:
                position.unreachable = self._logged("what is revoked", e.reason)

    def _is_trial_refused(self) -> bool:
        """Return whether the canary was refused, or is to be."""
        generations, trial = self.live.host.generations, self._latest.trial
        if trial is None:
            return bool(self._positions[CANARY].refused)
        return generations.refusal(generations.load(trial)) is not None

    def _leave_revoked(self) -> None:
        """Leave what is revoked, if the log had nothing to serve in its place."""
        position = self._positions[REVOKED]
        try:
            refusal = self._recall()
            position.refused = "" if refusal is None else self._logged(PRODUCTION, refusal.reason)
            self._leaving = False
        except PASSING as e:
            position.unreachable = e.reason

    def _follow(self, stage: str, follow: Callable[[StageEntry], str | None]) -> None:
        """Follow the last entry of a log, if it is new."""
        position, entries = self._positions[stage], self.fleet.stages[stage]
        try:
            if monotonic() - self._checked > REPORT_EVERY:
                self.fleet.require()
                self._checked = monotonic()
            seen = position.seen
            entry = entries.last() if seen is None else entries.after(seen)
            if entry is not None:
                try:
                    position.refused = follow(entry) or ""
                except PASSING:
                    raise
                except redhost.RedhostError as e:  # permanent here; wait for the next entry
                    position.refused = self._logged(stage, e.reason)
            position.seen = entry.sequence if entry is not None else seen or 0
            position.unreachable = ""
        except PASSING as e:
            if position.unreachable != e.reason:
                position.unreachable = self._logged(stage, e.reason)

    def _logged(self, stage: str, reason: str) -> str:
        serving = self.live.generation
        log.warning("%s is not followed, generation %s goes on: %s", stage, serving, reason)
        return reason

    def _serve(self, entry: StageEntry) -> str | None:
        """Serve production's generation, or the last one before it of which nothing is revoked.

        Returns:
            Why it is not production's own.
        """
        chosen, reason = self._without_revoked(entry)
        number = self._bring(chosen)
        if number == self.live.generation:
            return reason
        self._swap(number)
        written = datetime.fromisoformat(entry.when).timestamp()
        self._latest = msgspec.structs.replace(self._latest, seconds=round(time() - written, 3))
        return reason

    def _without_revoked(self, entry: StageEntry) -> tuple[StageEntry, str | None]:
        """Return the last entry up to this one of which nothing is revoked, else this one."""
        revoked, log, reason = self.live.host.store.revoked(), self.fleet.stages[PRODUCTION], None
        sequences = [n for n in log.sequences() if n <= entry.sequence] if revoked else []
        for sequence in reversed(sequences):
            earlier = log.read(sequence)
            if earlier is None or earlier.generation is None:
                continue
            document = self.fleet.document(earlier.generation)
            if document is None:
                continue
            gone = sorted(document.packages.keys() & revoked.keys())
            if not gone:
                return earlier, reason
            reason = reason or f"{gone[0][:12]}… is revoked: {revoked[gone[0]].reason}"
        return entry, None

    def _run_trial(self, entry: StageEntry) -> None:
        """Prepare the canary's generation in addition to production, or drop it."""
        self._latest = msgspec.structs.replace(self._latest, trial=None)
        self._trial(entry, None, {})  # end the previous trial and its counts in any case
        if entry.generation is None:
            return
        number = self._bring(entry)
        model = self.live.prepare(number, replay=True)
        before, both = self._before_restart(), (entry.sequence, self._positions[PRODUCTION].seen)
        counted: Mapping[str, Comparison] = {}
        if before is not None and (before.canary, before.production) == both:
            counted = {} if impossible(before, entry) else before.comparisons
        self._trial(entry, model, counted)
        self._latest = msgspec.structs.replace(self._latest, trial=number)

    def _report(self) -> None:
        """Write the replica's report; if that fails, a later report is written."""
        self._reported = monotonic()
        try:
            self.fleet.require()
            self._before_restart()  # read it before it is overwritten
            self.fleet.report(self.latest)
        except redhost.errors.StoreError as e:
            log.info("no report: %s", e.reason)

    def _before_restart(self) -> ReplicaReport | None:
        """Return the last report before the replica started, read once."""
        if not self._remembers:
            self._earlier, self._remembers = self.fleet.report_of(self._latest.replica), True
        return self._earlier

    def _bring(self, entry: StageEntry) -> int:
        """Download the generation of an entry into the home, verified."""
        assert entry.generation is not None  # noqa: S101  (only a canary's entry names none)
        record = self.fleet.pull(self.live.host.generations, entry.generation)
        if record.digest != entry.digest:
            raise redhost.errors.IntegrityError(
                f"generation {entry.generation} is not the one that was promoted",
                expected=entry.digest[:12],
                found=record.digest[:12],
                hint="Promote it again.",
            )
        return entry.generation


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is replaced; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
