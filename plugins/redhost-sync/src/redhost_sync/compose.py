"""Compose what a lock names, from bytes in memory or in the environment; publish nothing yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.prepare import load_parts
from redhost.core.composition.prior import read_prior
from redhost.core.composition.publish import RecomposeResult, refuse_drift
from redhost.core.composition.recompose import compose_parts
from redhost.core.composition.refusal import accepted
from redhost.core.composition.select import Installed, Selection, read_source
from redhost.core.session import Session
from redhost.core.types import Progress
from redhost.registry.errors import CompositionError, IntegrityError, RedhostError, short
from redhost.registry.home.composition import LockFile, lock_for
from redhost.registry.home.generations import Generations
from redhost.registry.package.discover import Package, canonical
from redhost.registry.package.readers import BackboneFiles, read_backbone

from .fetched import Fetched
from .sources import Source
from .state import package_of


def is_composed(home: Path, lock: LockFile) -> bool:
    """Return whether the current generation is what a lock names, with all its bytes."""
    generations = Generations(home)
    with suppress(RedhostError):
        number = generations.current()
        record = None if number is None else generations.load(number)
        if record is None or lock_for(record) != lock:
            return False
        for name in record.files:
            generations.file(record, name)
        generations.store.backbone(record.backbone.digest, name=record.backbone.id)
        for member in record.experts:
            generations.store.expert(member.digest, name=member.id)
        return True
    return False


def compose_locked(
    session: Session,
    lock: LockFile,
    fetched: Mapping[str, Fetched],
    sources: Sequence[Source],
    *,
    progress: Progress | None = None,
) -> RecomposeResult:
    """Compose the packages of a lock, with its router, and check that all is as it says.

    It is not compared with the current generation: who committed the lock has judged it.

    Args:
        session: The session whose home has the lock.
        lock: The lock.
        fetched: Wheels that are not installed yet, by canonical distribution.
        sources: May have the router's weights.
        progress: Called with (steps done, total steps).

    Raises:
        CompositionError: If what comes out is not what the lock names.
    """
    selection = _select(session, lock, fetched)
    inputs = load_parts(
        selection,
        plugins=session.plugins,
        cache=session.cache,
        device=session.device,
        progress=progress,
    )
    weights = router_of(session.home, lock, sources)
    if weights is None and lock.router.level != "full":
        raise _other_router(lock, f"the level {lock.router.level}, which starts from another one")
    settings = {name: lock.settings.get(name) for name in ("decline", "prior")}
    settings |= msgspec.to_builtins(lock.router)  # kind is given below; digest is no option
    options = RecomposeOptions(router=lock.router.kind, accept=True).over(settings)
    options = replace(options, prior=read_prior(options.prior, home=session.home))
    result = accepted(compose_parts(inputs, options, weights=weights, progress=progress))
    refuse_drift(inputs, lock, plugins=inputs.providers)
    if result.receipt.router.digest != lock.router.digest:
        raise _other_router(lock, short(result.receipt.router.digest))
    return result


def _other_router(lock: LockFile, found: str) -> CompositionError:
    return CompositionError(
        "the lock's router cannot be trained here",
        expected=short(lock.router.digest),
        found=found,
        hint="Bring its weights: 'redhost export-wheels FOLDER' where it was made, then "
        "'redhost sync --from FOLDER'; or compose anew: 'redhost recompose'.",
    )


def router_of(home: Path, lock: LockFile, sources: Sequence[Source]) -> bytes | None:
    """Return the weights of a lock's router: of a generation here, or of a source."""
    generations = Generations(home)
    for record in reversed(generations.history()):
        if record.router.digest == lock.router.digest:
            with suppress(IntegrityError):  # a damaged generation: another may be whole
                return generations.file(record, "router.safetensors")
    weights = (source.router(lock.router.digest) for source in sources)
    return next((data for data in weights if data is not None), None)


def _select(session: Session, lock: LockFile, fetched: Mapping[str, Fetched]) -> Selection:
    """Return the backbone and the experts of a lock; each of them must fit."""
    package, files = _backbone(lock, fetched)
    keys, statuses = session.settings.keys or (), []
    for expert_id, expert in lock.experts.items():
        one = fetched.get(canonical(expert.dist))
        source = Installed(expert_id) if one is None or one.wheel is None else one.wheel
        statuses.append(read_source(source, backbone=files.manifest, home=session.home, keys=keys))
    return Selection(package=package, files=files, statuses=tuple(statuses))


def _backbone(lock: LockFile, fetched: Mapping[str, Fetched]) -> tuple[Package, BackboneFiles]:
    one = fetched.get(canonical(lock.backbone.dist))
    if one is not None and one.wheel is not None:
        return one.wheel.package, one.backbone
    package = package_of("backbone", lock.backbone.dist)
    if package is None:
        raise CompositionError(f"backbone package {lock.backbone.dist} is gone")
    return package, read_backbone(package).unwrap(f"backbone package {package}")
