"""The order of `upgrade`: look, download, compose, install, publish; all or nothing.

Between the last gate and the publication a journal is written, as `redhost sync` writes one, so
that an upgrade that is killed is finished by the next `redhost upgrade` or `redhost sync`. The
composition is the old one or the new one at every moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from redhost_sync.alone import alone
from redhost_sync.index import MAX_WHEEL, TIMEOUT
from redhost_sync.install import installed, require_installable
from redhost_sync.journal import (
    Journal,
    Writing,
    end_journal,
    names_of,
    read_journal,
    write_journal,
)
from redhost_sync.sources import Source
from redhost_sync.state import package_of
from redhost_sync.synchronise import synchronise

from redhost.commands.common import open_host
from redhost.core.receipt import Receipt
from redhost.registry.errors import InstallError, MissingError, RedhostError, UnknownNameError
from redhost.registry.home.generations import Generations
from redhost.registry.home.locks import Writer, WriterLock
from redhost.registry.home.questions import question_of, root_of
from redhost.registry.queries.settings import disabled_names
from redhost.registry.wheel.signing import PublicKey

from .composed import in_use, records_of
from .fits import Fit
from .newcomer import Newcomer, fetch_newest
from .outdated import Newer, Offered, Standing, look
from .revocations import revoked_in
from .schema import number_of

if TYPE_CHECKING:
    from .changing import Changed

Report = Callable[[int, int], None]


class Upgraded(Struct, frozen=True, kw_only=True):
    """An expert in a newer version.

    Attributes:
        id: Its id.
        dist: Its distribution.
        before: The version before.
        version: The version now.
        question: The question that it answers; empty for the default one.
        source: Where the wheel came from.
        wheel: The sha256 of the wheel.
        digest: The digest of its content.
    """

    id: str
    dist: str
    before: str
    version: str
    question: str
    source: str
    wheel: str
    digest: str


class NotUpgraded(Struct, frozen=True, kw_only=True):
    """An expert that stays as it is.

    Attributes:
        id: Its id.
        dist: Its distribution.
        version: The version that is refused, or the one in use if there is none to take.
        reason: Why.
    """

    id: str
    dist: str
    version: str
    reason: str


class Upgrades(Struct, frozen=True, kw_only=True):
    """The result of `upgrade`.

    Attributes:
        home: The state folder.
        dry_run: Whether nothing was changed.
        resumed: Whether it finished first what a killed one had begun.
        upgraded: The experts in newer versions.
        refused: The newer versions that are refused, with ``--keep-going``.
        left: Newer versions that are revoked, beside the older ones that were taken.
        staying: Experts that were named, are outdated, yanked or revoked, and for which nothing
            fits.
        receipts: Question → the receipt of its composition; the default one has an empty name.
    """

    home: str
    dry_run: bool
    resumed: bool
    upgraded: tuple[Upgraded, ...] = ()
    refused: tuple[NotUpgraded, ...] = ()
    left: tuple[NotUpgraded, ...] = ()
    staying: tuple[NotUpgraded, ...] = ()
    receipts: dict[str, Receipt] = {}


@dataclass(frozen=True, kw_only=True)
class UpgradeOptions:
    """How to upgrade.

    Attributes:
        place: The index or folder to ask, instead of those that the lock records.
        timeout: How long an index may be silent.
        keys: If there are any, one of them must have signed each wheel.
        dry_run: Compose and judge; change nothing.
        keep_going: Leave out what is refused, instead of refusing all.
        tolerance: Points that a domain may lose.
        accept: Publish even if a domain loses more.
        device: Where the trunk runs.
        progress: Called with (steps done, total steps).
    """

    place: str | None = None
    timeout: float = TIMEOUT
    keys: Sequence[PublicKey] = ()
    dry_run: bool = False
    keep_going: bool = False
    tolerance: float | None = None
    accept: bool = False
    device: str | None = None
    progress: Report | None = None


def upgrade(home: Path, ids: Sequence[str], options: UpgradeOptions) -> Upgrades:
    """Compose the newest fitting versions of the named experts, or of all.

    Args:
        home: The state folder.
        ids: The experts' ids; all if there are none.
        options: How.

    Raises:
        RedhostError: If anything fails or is refused; environment and compositions are unchanged.
    """
    home = root_of(home)
    records_of(home)  # a folder without a composition is not written to
    resumed = not options.dry_run and _finish(home, options)
    with alone(home):
        run = _Run(home=home, options=options, lock=WriterLock(home))
        newcomers = run.fetch(run.choose(ids), named=bool(ids))
        with Generations(home, lock=run.lock).writer() as writer:
            changed = run.compose(newcomers)
            receipts = run.publish(changed, writer)
    return Upgrades(
        home=str(home),
        dry_run=options.dry_run,
        resumed=resumed,
        upgraded=tuple(_upgraded(one) for each in changed for one in each.newcomers),
        refused=tuple(run.refused),
        left=tuple(run.left(changed)),
        staying=tuple(run.staying),
        receipts=receipts,
    )


def _finish(home: Path, options: UpgradeOptions) -> bool:
    """Finish what a killed `upgrade` or `sync` had begun; return whether there was anything."""

    def nowhere() -> Source:
        hint = "Finish it with 'redhost sync' first."
        raise MissingError("a 'redhost sync' was cut short, and lacks a package", hint=hint)

    if read_journal(home) is None:
        return False
    synchronise(home, (), nowhere, keys=options.keys, device=options.device)
    return True


def _why_not(standing: Standing, *, named: bool) -> str:
    """Return why there is nothing to upgrade to, if that is worth knowing."""
    withdrawn = _withdrawn(standing)
    if withdrawn and not standing.newer:
        return f"it is {withdrawn}, and there is no newer version"
    if not standing.listed:
        where = standing.source
        reason = f"{where} has no such project" if where else "no index of it is known"
        return reason if named else ""
    if standing.newer:
        first = standing.newer[0]
        state = _withdrawn(first)
        why = f"is {state}" if state else first.why or standing.status
        prefix = f"it is {withdrawn}, and no newer version fits: " if withdrawn else ""
        return f"{prefix}{first.version} {why}"
    return "it is the newest" if named else ""


def _withdrawn(one: Standing | Newer) -> str:
    """Return that a version is revoked or yanked, and why; empty if it is neither."""
    for word, reason in (("revoked", one.revoked), ("yanked", one.yanked)):
        if reason is not None:
            return f"{word}: {reason}" if reason else word
    return ""


def _left_alone(standing: Standing, off: AbstractSet[str]) -> str:
    """Return why an expert that was not named is not upgraded: the user took it away."""
    if off & {standing.id, standing.dist}:
        return "it is disabled"
    installed_here = package_of("expert", standing.dist) is not None
    return "" if installed_here else "it is not installed here: name it to install it"


def _stays(standing: Standing, reason: str) -> NotUpgraded:
    return NotUpgraded(id=standing.id, dist=standing.dist, version=standing.version, reason=reason)


def _upgraded(one: Newcomer) -> Upgraded:
    return Upgraded(
        id=one.member.id,
        dist=one.wheel.package.dist,
        before=one.member.version,
        version=one.version,
        question=one.member.question,
        source=one.wheel.source,
        wheel=one.wheel.sha256,
        digest=one.digest,
    )


class _Run:
    """The steps of an `upgrade`, and what was refused on the way."""

    def __init__(self, *, home: Path, options: UpgradeOptions, lock: WriterLock) -> None:
        self.home, self.options, self.lock = home, options, lock
        self.refused: list[NotUpgraded] = []
        self.staying: list[NotUpgraded] = []
        self.offers: dict[tuple[str, str], Offered] = {}
        self.examine: Callable[[Offered], None]

    def choose(self, ids: Sequence[str]) -> list[Offered]:
        """Ask where the experts came from; return what has a version to take."""
        experts = [package for package in in_use(self.home) if package.kind == "expert"]
        if unknown := sorted(set(ids) - {package.id for package in experts}):
            raise UnknownNameError("composed expert", unknown[0], (p.id for p in experts))
        wanted = [package for package in experts if not ids or package.id in ids]
        options = self.options
        seen = look(
            wanted,
            place=options.place,
            timeout=options.timeout,
            most=MAX_WHEEL,
            until_one_fits=True,
            revoked=revoked_in(self.home),
        )
        self.examine = seen.examine
        candidates = list[Offered]()
        off = disabled_names(self.home)
        for one in seen.offered:
            standing = one.standing
            if not ids and standing.newest and (reason := _left_alone(standing, off)):
                self.staying.append(_stays(standing, reason))
            elif standing.problem:
                error = InstallError(standing.problem, hint="Nothing was changed.")
                self._refuse(standing.id, standing.dist, standing.version, error)
            elif standing.newest:
                candidates.append(one)
            elif reason := _why_not(standing, named=bool(ids)):
                self.staying.append(_stays(standing, reason))
        return candidates

    def fetch(self, candidates: Sequence[Offered], *, named: bool) -> list[Newcomer]:
        """Download the wheels and check that they can be installed here."""
        found = list[Newcomer]()
        for one in candidates:
            self.offers[one.package.id, one.package.question] = one
            if (newcomer := self._fetch(one)) is not None:
                found.append(newcomer)
            elif not one.refused and (reason := _why_not(one.standing, named=named)):
                self.staying.append(_stays(one.standing, reason))
        return found

    def _fetch(self, one: Offered) -> Newcomer | None:
        """Download the newest version that fits and is neither revoked nor refused."""
        while version := one.standing.newest:
            try:
                newcomer = fetch_newest(one, version, keys=self.options.keys)
                # Only now its digest is known, by which it may be revoked.
                one.fits[one.links[version].file] = Fit(fits=True, digest=newcomer.digest)
                if one.newer(version).revoked is None:
                    require_installable(newcomer.fetched)
                    return newcomer
            except RedhostError as e:
                self._refuse(one.package.id, one.package.dist, version, e)
                one.refused.add(version)
            self.examine(one)
        return None

    def left(self, changed: Sequence[Changed]) -> Iterator[NotUpgraded]:
        """Yield the revoked versions that are newer than those that were taken."""
        for newcomer in (one for each in changed for one in each.newcomers):
            member = newcomer.member
            for newer in self.offers[member.id, member.question].standing.newer:
                above = number_of(newer.version) > number_of(newcomer.version)
                if above and newer.revoked is not None:
                    yield NotUpgraded(
                        id=member.id,
                        dist=member.dist,
                        version=newer.version,
                        reason=_withdrawn(newer),
                    )

    def compose(self, newcomers: Sequence[Newcomer]) -> list[Changed]:
        """Compose every question that has a newer version."""
        if not newcomers:
            return []
        from redhost.core.composition.options import RecomposeKeywords

        from .changing import compose_newer

        options, changed = self.options, list["Changed"]()
        keywords = RecomposeKeywords(
            tolerance=options.tolerance, accept=options.accept, progress=options.progress
        )
        for where, record in records_of(self.home).items():
            those = [one for one in newcomers if one.member.home == where]
            if not those:
                continue
            session = replace(
                open_host(where, device=options.device).session,
                generations=Generations(where, lock=self.lock),
            )
            made = compose_newer(session, record, those, keywords, refuse=self._refuse_newcomer)
            changed += [made] if made is not None else []
        return changed

    def publish(self, changed: Sequence[Changed], writer: Writer) -> dict[str, Receipt]:
        """Install the wheels and publish; if an error comes first, nothing is changed."""
        names = [question_of(one.session.home) or "" for one in changed]
        if self.options.dry_run or not changed:
            results = (one.result.receipt for one in changed)
            return dict(zip(names, results, strict=True))
        from redhost.core.composition.publish import publish

        fetched = [one.fetched for each in changed for one in each.newcomers]
        self._begin(changed)
        receipts = dict[str, Receipt]()
        try:
            with ExitStack() as stack:
                stack.enter_context(installed(fetched))
                for name, one in zip(names, changed, strict=True):
                    receipt = publish(one.session, one.result, writer=writer, lock=one.lock)
                    receipts[name] = receipt
                    one.session.plugins.notify("redhost_composed", receipt=receipt)
        except Exception:
            if not receipts:
                end_journal(self.home)
            raise
        end_journal(self.home)
        return receipts

    def _begin(self, changed: Sequence[Changed]) -> None:
        """Write down what is about to be done."""
        locks = {one.session.home: one.lock for one in changed}
        fetched = [one.fetched for each in changed for one in each.newcomers]
        before = {where: Generations(where).current() for where in locks}
        journal = Journal(
            locks=names_of(locks, self.home),
            before={where.relative_to(self.home).as_posix(): n for where, n in before.items()},
            writing=tuple(Writing(dist=one.part.dist, tops=one.tops) for one in fetched),
            removing=(),
        )
        routers = {one.lock.router.digest: one.result.router_bytes for one in changed}
        write_journal(self.home, journal, fetched, routers=routers)

    def _refuse_newcomer(self, one: Newcomer, error: RedhostError) -> Newcomer | None:
        """Note a newer version that is refused; return the next lower one that fits."""
        self._refuse(one.member.id, one.member.dist, one.version, error)
        offered = self.offers[one.member.id, one.member.question]
        offered.refused.add(str(number_of(one.version)))
        self.examine(offered)
        return self._fetch(offered)

    def _refuse(self, expert_id: str, dist: str, version: str, error: RedhostError) -> None:
        """Note a newer version that is refused; without ``--keep-going`` nothing goes on.

        Raises:
            RedhostError: The error.
        """
        if not self.options.keep_going:
            raise error
        refused = NotUpgraded(id=expert_id, dist=dist, version=version, reason=error.reason)
        self.refused.append(refused)
