"""Recompose: five steps, each of them a function from one frozen value to the next.

    select     what may join, as its files say     Selection                     `select.py`
    load       its parts, built and checked        RecomposeInputs               `prepare.py`
    train      a router over them                  Trained                       `train.py`
    judge      whether somebody loses by it        RecomposeResult or Refusal    `gates.py`
    publish    the next generation                 Receipt                       `publish.py`

`recompose` takes all five; `compose_selection` the three in the middle, without newcomers that make
them fail (`attribution.py`); `compose_parts` trains and judges. Nothing below the bus may change
while it does: digests are compared before and after, and if any differs, nothing is composed
(law 1). A change of one member (`changes.py`) selects otherwise and goes the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch

from ...registry.environment.status import check_packages
from ...registry.errors import (
    FrozenError,
    HarmError,
    IntegrityError,
    MissingError,
    PluginError,
    RedhostError,
    UsageError,
    short,
)
from ...registry.home.composition import LOCK, LockFile, read_lock
from ...registry.home.store import Store
from ...registry.package.discover import from_folder
from ..bus.bus import BACKBONE
from ..digests import tensor_digest
from ..model.build import read_package
from ..model.moments import Moments
from ..plugins.manager import Plugins
from ..receipt import DigestChange, Receipt
from ..routers.base import router_tensors
from ..session import Session
from ..types import Progress
from .attribution import compose_without_faulty
from .gates import judge_composition
from .options import RecomposeKeywords, RecomposeOptions, checked_keywords
from .prepare import Previous, RecomposeInputs, load_parts
from .prior import CARDS, read_prior
from .publish import (
    RECEIPT,
    RecomposeResult,
    draft_receipt,
    locked_router,
    publish,
    refuse_drift,
)
from .refusal import Refusal, accepted
from .select import Selection, select_installed, without_unsigned
from .train import StepTimer, train

log = logging.getLogger("redhost")


def recompose(
    session: Session, keywords: RecomposeKeywords, *, locked: bool = False, dry_run: bool = False
) -> Receipt:
    """Compose what is installed, and publish it, as `Host.recompose` says.

    Args:
        session: The session whose home is composed.
        keywords: How to compose.
        locked: Follow the home's lock.
        dry_run: Do everything except publish.

    Raises:
        RedhostError: If anything fails; the current generation is then unchanged.
    """
    lock = lock_to_follow(session.home, keywords) if locked else None
    # Held from the first read on: nobody publishes between the comparison and the switch.
    with nullcontext() if dry_run else session.generations.writer() as writer:
        selection = select_installed(session.home, backbone=session.settings.backbone)
        members = [*here.experts.values()] if (here := read_lock(session.home / LOCK)) else []
        if members and lock is None and all(m.signer for m in members):  # as `add` began it
            selection = without_unsigned(
                selection,  # of all generations: what was disabled may return
                signed={d for d, o in session.generations.origins().items() if o.signer},
            )
        result = accepted(compose_selection(session, selection, keywords, lock=lock))
        if writer is None:
            return result.receipt
        current = session.generations.current()
        receipt = publish(session, result, writer=writer, lock=lock, keep=lock is None)
    if receipt.generation != current:
        session.plugins.notify("redhost_composed", receipt=receipt)
    return receipt


def compose(
    backbone: Path,
    experts: Sequence[Path],
    *,
    options: RecomposeOptions | None = None,
    plugins: Plugins | None = None,
    cache: Path | None = None,
    device: str = "cpu",
) -> RecomposeResult:
    """Compose packages from their folders, in memory; install and publish nothing.

    Args:
        backbone: The backbone package's folder.
        experts: The expert packages' folders, in any order.
        options: Router, level and seed; by default the default router with seed 0.
        plugins: The plugins that make the parts; by default those of the environment.
        cache: The folder of the feature cache; None caches nothing.
        device: The device of the trunk.
    """
    package = from_folder(backbone)
    files = read_package(package)
    plugins = plugins or Plugins()
    chosen = options or RecomposeOptions(router=plugins.task(files.manifest.task).unit.router)
    selection = Selection(
        package=package,
        files=files,
        statuses=check_packages([from_folder(p) for p in experts], backbone=files.manifest),
    )
    load = partial(load_parts, plugins=plugins, cache=cache, device=device)
    return accepted(
        compose_without_faulty(selection, lambda x: compose_parts(load(x), chosen), composed={})
    )


def compose_selection(
    session: Session,
    selection: Selection,
    keywords: RecomposeKeywords,
    *,
    made_with: Mapping[str, Any] | None = None,
    lock: LockFile | None = None,
) -> RecomposeResult | Refusal:
    """Check, build, train and judge; publish nothing.

    Args:
        session: The session whose current generation it is compared with.
        selection: The backbone and the experts.
        keywords: How to compose.
        made_with: Replaces missing keywords; the settings replace what is missing here.
        lock: Supplies router and settings; nothing is trained then.

    Returns:
        The composition; a refusal if something that worked would stop working.

    Raises:
        FrozenError: If a frozen part changed; the current generation is then loaded anew.
    """
    keywords = checked_keywords(keywords)
    default = session.plugins.task(selection.files.manifest.task).unit.router
    # The later, the less it counts: what was typed, the generation that is repeated, settings.
    options = RecomposeOptions(router=default).over(
        keywords, made_with or {}, msgspec.structs.asdict(session.settings)
    )
    options = replace(options, prior=read_prior(options.prior, home=session.home))
    progress = keywords.get("progress")
    previous = _load_previous(session, selection, accept=options.accept)
    load = partial(
        load_parts,
        plugins=session.plugins,
        cache=session.cache,
        device=session.device,
        previous=previous,
        progress=progress,
        pool=session.pool,
    )
    try:
        if lock is None:
            return compose_without_faulty(
                selection,
                lambda chosen: compose_parts(load(chosen), options, progress=progress),
                composed=previous.record.members() if previous.record else {},
            )
        inputs = load(selection)
        weights = locked_router(inputs, lock, generations=session.generations)
        options = replace(options, **_made_with(lock))
        outcome = compose_parts(inputs, options, weights=weights, progress=progress)
        if isinstance(outcome, RecomposeResult):
            # Which plugins make the norm and the router is known only now.
            refuse_drift(inputs, lock, plugins=inputs.providers)
        return outcome
    except FrozenError:
        session.loader.forget()  # the loaded generation uses the backbone that may have changed
        raise


def compose_parts(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    *,
    weights: bytes | None = None,
    progress: Progress | None = None,
) -> RecomposeResult | Refusal:
    """Train the router and judge the composition.

    Args:
        inputs: The parts.
        options: The options.
        weights: Router weights to use instead of training (``--locked``).
        progress: Called with (steps done, total steps) while the router trains.

    Returns:
        The composition; a refusal, if a domain that was composed before loses more than the
        tolerance, or an expert drowns out the others.

    Raises:
        FrozenError: If the backbone or an expert has changed, even with ``accept``.
        CardError: If a router cannot be trained on a card.
        UsageError: If the router does not support the level.
    """
    timer = StepTimer()
    before = _digests(inputs)
    timer.mark("digests")
    try:
        trained = train(inputs, options, timer=timer, weights=weights, progress=progress)
        gates = judge_composition(inputs, options, trained.model, trained.data)
    except Exception as e:
        e.add_note(f"(parts from {', '.join(sorted(inputs.providers)) or 'redhost alone'})")
        raise
    timer.mark("judge")
    # Computed again from the tensors in memory: a plugin's router may have reached them.
    digests = _unmoved(before, _digests(inputs))
    timer.mark("digests")
    if isinstance(gates, Refusal):
        return gates
    model = replace(
        trained.model,
        calibration=gates.calibration,
        decline=options.decline or None,  # a share of 0 declines nothing, as no share does
        moments=Moments.of_columns([d for d in trained.data if d.column != BACKBONE]),
    )
    return RecomposeResult(
        inputs=inputs,
        composed=model,
        receipt=draft_receipt(
            inputs, options, replace(trained, model=model), gates, digests, timer.steps
        ),
        router_bytes=safetensors.torch.save(router_tensors(trained.router)),
    )


def lock_to_follow(home: Path, keywords: RecomposeKeywords) -> LockFile:
    """Return the lock of a home; keywords given by the user may not contradict it.

    Raises:
        MissingError: If there is none.
        UsageError: If a keyword contradicts it.
    """
    lock = read_lock(home / LOCK)
    if lock is None:
        raise MissingError("there is no lock to follow", hint="Run 'redhost recompose' once.")
    given = {
        **keywords,
        "decline": keywords.get("decline") or None,  # 0 and no share both decline nothing
        "prior": None if keywords.get("prior") == CARDS else keywords.get("prior"),
    }
    for name, value in _made_with(lock).items():
        if (requested := given.get(name)) not in {None, value}:
            raise UsageError(
                f"--locked uses the {name} of the lock",
                expected=str(value),
                found=str(requested),
                hint="Leave it out, or recompose without --locked.",
            )
    return lock


def _made_with(lock: LockFile) -> dict[str, Any]:
    """Return the options that a lock pins, by name."""
    return {
        "router": lock.router.kind,
        "level": lock.router.level,
        "seed": lock.router.seed,
        "decline": lock.settings.get("decline"),
        "prior": lock.settings.get("prior"),
    }


def _load_previous(session: Session, selection: Selection, *, accept: bool) -> Previous:
    """Return the current generation, from bytes that the selection has read where it can.

    With `accept`, one that cannot be loaded is dropped.

    Raises:
        HarmError: If it cannot be loaded, so that nothing can be compared with it.
    """
    current, previous = session.generations.current(), Previous()
    if current is None:
        return previous
    try:
        previous = Previous(record=session.generations.load(current))
        store = Store(session.home, held=selection.read)
        previous = replace(previous, model=session.loader.load(current, store=store))
    except RedhostError as e:
        if not accept:
            anew = "Repair it, or compose anew with --accept."
            raise HarmError(
                f"generation {current} cannot be loaded, so nothing is compared with it: "
                f"{e.reason}",
                hint=e.hint if isinstance(e, PluginError) else anew,
            ) from e
        log.warning("not compared with generation %s: %s", current, e.reason)
    with suppress(IntegrityError):  # of a damaged receipt nobody knows what domains have lost
        if previous.record is not None:
            data = session.generations.file(previous.record, RECEIPT)
            fallen = msgspec.json.decode(data, type=Receipt).accuracy.fallen
            previous = replace(previous, fallen=fallen)
    return previous


def _digests(inputs: RecomposeInputs) -> dict[str, str]:
    """Return the digests of the backbone (under the empty name) and of every expert's tensors."""
    experts = inputs.candidates.experts
    return {
        "": inputs.backbone.fingerprint(),
        **{i: tensor_digest(e.expert.state_dict()) for i, e in experts.items()},
    }


def _unmoved(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, DigestChange]:
    """Return the digests of each part; refuse the composition if a frozen one has changed (law 1).

    Raises:
        FrozenError: If a digest differs.
    """
    moved = [i for i, digest in before.items() if after[i] != digest]
    if moved:
        names = ["the backbone" if not i else f"expert {i!r}" for i in moved]
        raise FrozenError(
            f"frozen weights moved while the router was trained: {', '.join(names)}",
            expected=short(before[moved[0]]),
            found=short(after[moved[0]]),
            hint="Nothing was published. Tell the author of the plugin that made the router.",
        )
    return {i: DigestChange(before=digest, after=after[i]) for i, digest in before.items()}
