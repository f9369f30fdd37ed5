"""`--follow`: serve the generations of a fleet's store, and report to the store.

The follower belongs to redhost-fleet, which is imported only here and only if needed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

import redhost
from redhost_serve.recall import recall
from redhost_serve.service import Service
from redhost_serve.trial import Trial

if TYPE_CHECKING:
    from redhost_fleet.documents import Comparison, ReplicaReport, StageEntry

__all__ = ["following"]


@contextlib.contextmanager
def following(service: Service, store: str | None, *, where: str) -> Iterator[None]:
    """Follow a fleet's store while the block runs, if one is given.

    Args:
        service: The service whose live host follows.
        store: The store's address; None for no fleet.
        where: The address of the server.

    Raises:
        SettingsError: If redhost-fleet is not installed, or cannot use the store.
    """
    if store is None:
        yield
        return
    try:
        from redhost_fleet.fleet import Fleet
        from redhost_fleet.follower import Follower
    except ImportError as e:
        raise redhost.errors.SettingsError(
            f"cannot follow {store}",
            found=str(e),
            hint="Run 'pip install redhost-serve[fleet]'.",
        ) from e

    def begin_trial(
        entry: StageEntry, model: redhost.ComposedModel | None, counted: Mapping[str, Comparison]
    ) -> None:
        if model is None:
            service.trial = None
            return
        service.trial = Trial(
            model=model,
            share=entry.share,
            mirror=entry.mirror,
            salt=entry.token,
            counts={i: Counter(msgspec.structs.asdict(c)) for i, c in counted.items()},
        )

    def swap(number: int) -> None:
        service.change(lambda: service.live.swap(number))
        if service.trial is not None:  # the counts compare with another production
            service.trial = replace(service.trial, counts={})

    follower = Follower(
        service.live,
        Fleet(store),
        where=where,
        swap=swap,
        trial=begin_trial,
        observe=lambda report: _observed(service, report),
        recall=lambda: recall(service),
    )
    follower.look()  # once before the first request: load the current production
    service.follows = lambda: follower.latest
    follower.start()
    service.helpers.append(follower)
    try:
        yield
    finally:
        follower.stop()


def _observed(service: Service, report: ReplicaReport) -> ReplicaReport:
    """Add this server's counts to a report."""
    trial = service.trial
    shares, priors, texts = service.shares()
    found = {
        "comparisons": {} if trial is None else trial.counted(),
        "shares": shares,
        "priors": priors,
        "texts": texts,
        "drift": {i: msgspec.structs.asdict(d) for i, d in service.drift().items()},
    }
    return msgspec.convert({**msgspec.to_builtins(report), **found}, type(report))
