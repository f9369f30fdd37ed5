"""Compose the members of a generation, several of them in newer versions; publish nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from redhost.core.composition.options import RecomposeKeywords
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose_selection
from redhost.core.composition.refusal import Refusal
from redhost.core.composition.select import Selection, change, read_source, select_stored
from redhost.core.session import Session
from redhost.registry.environment.status import PackageStatus
from redhost.registry.errors import ContractError, RedhostError
from redhost.registry.home.composition import (
    Composition,
    LockedRouter,
    LockFile,
    Provenance,
    lock_for,
)
from redhost.registry.home.questions import recorded_place

from .newcomer import Newcomer

Refuse = Callable[[Newcomer, RedhostError], Newcomer | None]
"""Called with a newcomer that is refused: raises, or returns what to try instead, if anything."""


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A composition with newer versions that passed, not yet published.

    Attributes:
        session: The session that it was composed in.
        result: The composition.
        lock: The lock that it gets.
        newcomers: The newer versions in it.
    """

    session: Session
    result: RecomposeResult
    lock: LockFile
    newcomers: tuple[Newcomer, ...]


def compose_newer(
    session: Session,
    record: Composition,
    newcomers: Sequence[Newcomer],
    keywords: RecomposeKeywords,
    *,
    refuse: Refuse,
) -> Changed | None:
    """Compose the members of a generation, with newer versions in place of some.

    Args:
        session: The session whose home it is.
        record: The current generation.
        newcomers: The newer versions.
        keywords: How to compose.
        refuse: Called with each newer version that does not fit or does harm.

    Returns:
        The composition; None if no newer version is left.

    Raises:
        RedhostError: If it fails for another reason, or `refuse` raises.
    """
    stored = select_stored(record, session.store)
    trial = _Trial(session=session, record=record, stored=stored, keywords=keywords)
    left = _present(trial.read(one, refuse) for one in newcomers)
    while left:
        outcome = trial.compose(left)
        blamed = trial.faults(outcome, left)
        if not blamed and isinstance(outcome, RecomposeResult):
            lock = _lock(session, record, outcome, left)
            return Changed(session=session, result=outcome, lock=lock, newcomers=tuple(left))
        faults = {one.member.id: error for one, error in blamed}
        left = _present(trial.next(one, faults.get(one.member.id), refuse) for one in left)
    return None


def _present(found: Iterable[Newcomer | None]) -> list[Newcomer]:
    return [one for one in found if one is not None]


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Compositions of one generation with some of the newer versions."""

    session: Session
    record: Composition
    stored: Selection
    keywords: RecomposeKeywords
    statuses: dict[str, PackageStatus] = field(default_factory=dict)

    def read(self, one: Newcomer | None, refuse: Refuse) -> Newcomer | None:
        """Check a newer version against the backbone; return it, or what to try instead."""
        while one is not None:
            try:
                self.statuses[one.member.id] = read_source(
                    one.wheel,
                    backbone=self.stored.files.manifest,
                    home=self.session.home,
                    keys=self.session.settings.keys or (),
                )
            except RedhostError as e:
                one = refuse(one, e)
            else:
                return one
        return None

    def next(self, one: Newcomer, error: RedhostError | None, refuse: Refuse) -> Newcomer | None:
        """Return a newer version, or what to try instead if it is at fault."""
        return one if error is None else self.read(refuse(one, error), refuse)

    def compose(self, newcomers: Sequence[Newcomer]) -> RecomposeResult | Refusal:
        """Compose with these newer versions."""
        selected, record = self.stored, self.record
        for one in newcomers:
            joins = self.statuses[one.member.id]
            selected = change(selected, home=self.session.home, add=joins, remove=one.member.id)
        made_with = {
            **record.settings,
            "router": record.router.kind,
            "seed": record.router.seed,
        }
        return compose_selection(self.session, selected, self.keywords, made_with=made_with)

    def faults(
        self, outcome: RecomposeResult | Refusal, newcomers: Sequence[Newcomer]
    ) -> list[tuple[Newcomer, RedhostError]]:
        """Return the newer versions that a composition fails by, and why."""
        if isinstance(outcome, Refusal):
            return [self._first_fault(outcome, newcomers)]
        candidates = outcome.inputs.candidates
        rejected = {r.expert: r for r in candidates.rejected}
        missing = [one for one in newcomers if one.member.id not in candidates.experts]
        return [(one, _error(one, rejected[one.member.id])) for one in missing]

    def _first_fault(
        self, refusal: Refusal, newcomers: Sequence[Newcomer]
    ) -> tuple[Newcomer, RedhostError]:
        """Find the first newer version with which a composition is refused, by bisection."""
        passes, fails, why = 0, len(newcomers), refusal
        while fails - passes > 1:
            middle = (passes + fails) // 2
            outcome = self.compose(newcomers[:middle])
            if isinstance(outcome, Refusal):
                fails, why = middle, outcome
            elif blamed := self.faults(outcome, newcomers[:middle]):
                return blamed[0]
            else:
                passes = middle
        one = newcomers[fails - 1]
        return one, _error(one, why)


def _error(one: Newcomer, refusal: Refusal) -> RedhostError:
    """Return the error of a newer version that is refused."""
    error, hint = refusal.error(), refusal.violations[0].hint
    if refusal.retry:  # `upgrade` has no --router, which the gates propose
        wanted = f"{one.wheel.package.dist}=={one.version}"
        at = "--index-url" if "://" in one.wheel.source else "--find-links"
        wanted += f" {at} {shlex.quote(one.wheel.source)}"
        hint = "Nothing was changed. With --keep-going it is left out, and the next lower version "
        hint += f"tried; 'redhost add {wanted} --try' compares routers; --accept goes on even so."
    return refusal.code.error(ContractError)(
        f"{one.member.id} {one.member.version} was not upgraded to {one.version}",
        expected=error.expected,
        found=f"{refusal.code.value}: {error.problem}"
        + (f": {error.found}" if error.found else ""),
        hint=hint,
    )


def _lock(
    session: Session, record: Composition, result: RecomposeResult, newcomers: Sequence[Newcomer]
) -> LockFile:
    """Return the lock of a composition that is about to be published."""
    lock, receipt = lock_for(record), result.receipt
    origins = {
        one.member.id: Provenance(
            dist=one.wheel.package.dist,
            version=one.version,
            digest=one.digest,
            wheel=one.wheel.sha256,
            signer=one.wheel.signer,
            source=recorded_place(one.wheel.source, session.home),
        )
        for one in newcomers
    }
    router = receipt.router
    return msgspec.structs.replace(
        lock,
        experts={i: origins.get(i, lock.experts[i]) for i in result.inputs.candidates.experts},
        plugins=dict(sorted(result.inputs.providers.items())),
        router=LockedRouter(
            kind=router.kind, level=router.level, digest=router.digest, seed=receipt.seed
        ),
    )
