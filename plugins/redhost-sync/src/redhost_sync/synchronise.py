"""The order of `sync`: check, compose, install, publish, uninstall; all or nothing.

1. What a killed `sync` left is cleaned up, and its lock put back where it was lost.
2. Every wheel that is missing is obtained and compared with the lock.
3. The journal is written: from here on a kill leaves work that the next `sync` finishes.
4. Plugins are installed, since composing needs their code; then every lock is composed.
5. Experts and backbones are installed, the generations published, and what left is uninstalled.

An error in 4, or in 5 before the first generation is published, puts everything back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from redhost.commands.common import open_host
from redhost.registry.environment.installed import require_removable
from redhost.registry.environment.installer import find, uninstall
from redhost.registry.home.composition import LockFile
from redhost.registry.home.generations import Generations
from redhost.registry.home.locks import Writer, WriterLock
from redhost.registry.home.questions import question_of, root_of
from redhost.registry.package.discover import canonical
from redhost.registry.wheel.signing import PublicKey

from .alone import alone
from .install import clean, installed, require_installable
from .journal import (
    FOLDER,
    Journal,
    Writing,
    end_journal,
    names_of,
    read_journal,
    restore_locks,
    write_journal,
)
from .locks import read_locks, refuse_revoked
from .plan import Plan, Sources, Staying, Step, make_plan
from .sources import Source

if TYPE_CHECKING:
    from redhost.core.composition.publish import RecomposeResult
    from redhost.core.session import Session

Report = Callable[[int, int], None]


class Synchronised(Struct, frozen=True, kw_only=True):
    """The result of `sync`.

    Attributes:
        home: The state folder.
        dry_run: Whether nothing was changed.
        resumed: Whether it finished what a killed `sync` had begun.
        steps: The changes of the environment, in their order.
        staying: Installed experts that no lock names and that stay.
        composed: The questions that were composed; the default question has an empty name.
        generations: Question → its current generation.
    """

    home: str
    dry_run: bool
    resumed: bool
    steps: tuple[Step, ...]
    staying: tuple[Staying, ...]
    composed: tuple[str, ...]
    generations: dict[str, int | None]


def synchronise(
    home: Path,
    given: Sequence[Source],
    otherwise: Callable[[], Source],
    *,
    keys: Sequence[PublicKey] = (),
    dry_run: bool = False,
    device: str | None = None,
    progress: Report | None = None,
) -> Synchronised:
    """Make environment and compositions what the locks of a home name.

    Args:
        home: The state folder.
        given: The sources to use; if there are none, those that the locks record.
        otherwise: Returns the source of what has none recorded.
        keys: If there are any, one of them must have signed an expert.
        dry_run: Obtain and check, and change nothing.
        device: Where the trunk runs.
        progress: Called with (steps done, total steps).

    Raises:
        RedhostError: If anything fails; environment and compositions are then unchanged.
    """
    home = root_of(home)
    sources = Sources(given=tuple(given), otherwise=otherwise)
    locks = read_locks(home)  # a folder without a lock is not written to
    refuse_revoked(home, locks, to_be="installed")
    if dry_run:
        journal = read_journal(home)
        sources = sources.after(home / FOLDER if journal else None)
        plan = make_plan(locks, sources, journal=journal, keys=keys)
        return _report(home, locks, plan, _stale(locks), dry_run=True, resumed=bool(journal))
    with alone(home):
        return _change(home, sources, keys, device=device, progress=progress)


def _change(
    home: Path,
    sources: Sources,
    keys: Sequence[PublicKey],
    *,
    device: str | None,
    progress: Report | None,
) -> Synchronised:
    """Finish what a killed `sync` began, or begin anew."""
    lock = WriterLock(home)
    with Generations(home, lock=lock).writer() as writer:
        if (journal := read_journal(home)) is not None:
            restore_locks(home, journal)
            clean(journal.writing)
            sources = sources.after(home / FOLDER)
        refuse_revoked(home, locks := read_locks(home), to_be="installed")
        plan, stale = make_plan(locks, sources, journal=journal, keys=keys), _stale(locks)
        if plan.steps or stale:
            for one in plan.fetched:
                require_installable(one)
            _begin(home, locks, plan, _routers(stale, sources.all))
            run = _Run(
                home=home,
                plan=plan,
                sources=sources.all,
                lock=lock,
                device=device,
                progress=progress,
            )
            run.all(stale, writer)
        end_journal(home)
    return _report(home, locks, plan, stale, dry_run=False, resumed=bool(journal))


def _stale(locks: Mapping[Path, LockFile]) -> dict[Path, LockFile]:
    """Return the locks whose composition is not the current one."""
    from .compose import is_composed

    return {where: lock for where, lock in locks.items() if not is_composed(where, lock)}


def _routers(locks: Mapping[Path, LockFile], sources: Sequence[Source]) -> dict[str, bytes]:
    """Return the weights of the locks' routers that are known, by digest."""
    from .compose import router_of

    found = {lock.router.digest: router_of(where, lock, sources) for where, lock in locks.items()}
    return {digest: data for digest, data in found.items() if data is not None}


def _begin(
    home: Path, locks: Mapping[Path, LockFile], plan: Plan, routers: Mapping[str, bytes]
) -> None:
    before = {where: Generations(where).current() for where in locks}
    journal = Journal(
        locks=names_of(locks, home),
        before={where.relative_to(home).as_posix(): n for where, n in before.items()},
        writing=tuple(Writing(dist=one.part.dist, tops=one.tops) for one in plan.fetched),
        removing=plan.removing,
    )
    # The folder of a killed one is replaced, and with it the weights that it had.
    write_journal(home, journal, plan.fetched, routers=routers)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """The steps that change something.

    Attributes:
        home: The state folder.
        plan: What changes in the environment.
        sources: May have the weights of routers.
        lock: The writer's lock, held.
        device: Where the trunk runs.
        progress: Called with (steps done, total steps).
    """

    home: Path
    plan: Plan
    sources: Sequence[Source]
    lock: WriterLock
    device: str | None
    progress: Report | None

    def all(self, stale: Mapping[Path, LockFile], writer: Writer) -> None:
        """Take every step; if one before the first publication fails, nothing is changed."""
        code = [one for one in self.plan.fetched if one.part.kind in {"plugin", "dependency"}]
        data = [one for one in self.plan.fetched if one not in code]
        published = False
        try:
            with ExitStack() as stack:
                stack.enter_context(installed(code))
                composed = [self._compose(where, lock) for where, lock in stale.items()]
                stack.enter_context(installed(data))
                for session, result, lock in composed:
                    _publish(session, result, lock, writer)
                    published = True
        except Exception:
            if not published:
                end_journal(self.home)
            raise
        for dist in self.plan.removing:
            if (package := find(dist)) is not None:
                require_removable(package)
                uninstall(dist)

    def _compose(self, where: Path, lock: LockFile) -> tuple[Session, RecomposeResult, LockFile]:
        from .compose import compose_locked

        fetched = {canonical(one.part.dist): one for one in self.plan.fetched}
        session = replace(
            open_host(where, device=self.device).session,
            generations=Generations(where, lock=self.lock),
        )
        result = compose_locked(session, lock, fetched, self.sources, progress=self.progress)
        return session, result, lock


def _publish(session: Session, result: RecomposeResult, lock: LockFile, writer: Writer) -> None:
    from redhost.core.composition.publish import publish

    receipt = publish(session, result, writer=writer, lock=lock)
    session.plugins.notify("redhost_composed", receipt=receipt)


def _report(
    home: Path,
    locks: Mapping[Path, LockFile],
    plan: Plan,
    stale: Mapping[Path, LockFile],
    *,
    dry_run: bool,
    resumed: bool,
) -> Synchronised:
    names = {where: question_of(where) or "" for where in locks}
    return Synchronised(
        home=str(home),
        dry_run=dry_run,
        resumed=resumed,
        steps=plan.steps,
        staying=plan.staying,
        composed=tuple(names[where] for where in stale),
        generations={name: Generations(where).current() for where, name in names.items()},
    )
