"""Stop serving what is revoked, within a poll: go back to a generation without it, or answer 503.

A poll is one `stat` of the home's file. A file that cannot be read changes nothing that is served,
and lets nothing else be served.
"""

from __future__ import annotations

import logging
import threading

import redhost
from redhost_serve.service import Recalled, Service
from redhost_serve.threads import attempt

__all__ = ["Recall", "recall"]

log = logging.getLogger("redhost.serve")

EVERY = 0.5
"""Seconds between two polls."""

REVOKED = "revoked.json"

State = tuple[tuple[int, int, int] | None, int | None]
"""A stamp of the home's file, and the generation that is served, or else is current."""


def recall(service: Service) -> redhost.RedhostError | None:
    """Let a service leave what is revoked, and return to it once it no longer is.

    Returns:
        Why what was served, or is current, may not answer; None if it may.

    Raises:
        RedhostError: If another change is under way, or it is not known what is revoked.
    """
    live, trial = service.live, service.trial
    generations = live.host.generations
    tried = None if trial is None else trial.model.generation
    if tried is not None and generations.refusal(generations.load(tried)) is not None:
        service.trial = None
    before, left, current = live.generation, service.recalled, generations.current()
    refusal = live.recall()
    if refusal is not None:
        number = current if before is None else before
        others = _others(generations, number, live.generation)
        service.recalled = Recalled(generation=number, reason=refusal.reason + others)
        if before != live.generation:
            served = live.generation or "none"
            log.warning("generation %s left, %s is served%s: %s", number, served, others, refusal)
    elif left is not None and before is None:
        service.change(live.swap)  # the home's current one, which may answer again
        service.recalled = None
    elif left is not None and not _is_refused(service, left):
        service.recalled = None
    return refusal


def _others(generations: redhost.plugins.Generations, left: int | None, served: int | None) -> str:
    """Return what else changes with what is revoked: whose experts are older, absent, or back."""
    if left is None or served is None:
        return ""
    revoked = generations.store.revoked()
    before, after = ({m.id: m for m in generations.load(n).experts} for n in (left, served))
    changes = list[str]()
    for expert in sorted(before.keys() | after.keys()):
        old, new = before.get(expert), after.get(expert)
        digests = {member.digest if member else "" for member in (old, new)}
        if len(digests) > 1 and not (old and old.digest in revoked):
            versions = (member.version if member else "absent" for member in (old, new))
            changes.append(f"{expert} ({' → '.join(versions)})")
    return f"; with it: {', '.join(changes)}" if changes else ""


def _is_refused(service: Service, left: Recalled) -> bool:
    """Return whether what was left still may not answer, and nothing newer is served."""
    generations, serving = service.live.host.generations, service.live.generation
    if left.generation is None or (serving is not None and serving > left.generation):
        return False
    return generations.refusal(generations.load(left.generation)) is not None


def _answering(service: Service) -> int | None:
    """Return the generation that is served; the current one where none is, which may be a newer."""
    served = service.live.generation
    return service.live.host.generations.current() if served is None else served


class Recall(threading.Thread):
    """Polls until it is stopped.

    Args:
        service: The service, with those of the named questions.
        every: Seconds between two polls.
    """

    def __init__(self, service: Service, *, every: float = EVERY) -> None:
        super().__init__(name="redhost-recall", daemon=True)
        self.service, self.every = service, every
        self._ended = threading.Event()
        self._seen: dict[str | None, State] = {}

    def run(self) -> None:
        """Poll repeatedly; errors are logged, never raised."""
        while not self._ended.wait(self.every):
            attempt(self.look, what="cannot tell what is revoked", ended=self._ended.is_set)

    def stop(self) -> None:
        """Stop polling."""
        self._ended.set()
        if self.is_alive():
            self.join()

    def look(self) -> None:
        """Poll once; what could not be changed is tried again at the next poll."""
        for service in self.service.every:
            if service.follows is not None:  # the follower leaves what is revoked
                continue
            state = (self._stamp(), _answering(service))
            if self._seen.get(service.question) == state:
                continue
            try:
                recall(service)
            except redhost.errors.SwapInProgressError:
                continue
            except redhost.RedhostError as e:
                served = service.live.generation
                goes_on = f"generation {served} goes on" if served else "none is served"
                log.warning("%s: %s", goes_on, e)
            self._seen[service.question] = (state[0], _answering(service))

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return what changes whenever the home's file is replaced; None if there is none."""
        try:
            found = (self.service.live.host.store.folder.parent / REVOKED).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
