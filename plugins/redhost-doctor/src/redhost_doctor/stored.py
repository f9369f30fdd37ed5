"""Checks of the bytes of a home: the pointer, the generations' records, the store.

Cheap: the current generation's files, every record, and every stored manifest are hashed, and the
files that manifests name are there. Deep: every byte is hashed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from redhost.errors import IntegrityError, StoreError, UnknownNameError
from redhost.registry.errors import RedhostError, short
from redhost.registry.home.composition import LOCK, Composition, lock_for, read_lock
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import homes_with, question_of, root_of
from redhost.registry.home.store import Store
from redhost.registry.package.discover import MANIFESTS, Kind, canonical, discover
from redhost.registry.package.manifest import parse_backbone, parse_expert, parts_of
from redhost.registry.package.readers import read_backbone, read_expert
from redhost.registry.package.rules import package_digest
from redhost.registry.queries.inventory import installed_digests
from redhost.registry.queries.settings import disabled_names
from redhost_doctor.finding import Finding, Step, Subject, fail, ok, warn
from redhost_doctor.install import AGAIN, install_command, wheel_with
from redhost_doctor.shell import pip_command, redhost_command
from redhost_doctor.source import source_of, unknown_source

RECEIPT = "receipt.json"


def check_generations(subject: Subject) -> Iterator[Finding]:
    """Check the pointer to the current generation, and the records and files of generations."""
    findings, count = [], 0
    for where in homes_with(subject.home):
        generations = Generations(where)
        count += len(generations.numbers())
        try:
            current = generations.current()
        except StoreError as e:
            findings.append(fail("generations", e.reason, mend=_back(generations)))
            continue
        for number in generations.numbers():
            is_current = number == current
            fault = fault_of_generation(generations, number, files=is_current or subject.deep)
            if fault and is_current:
                step = _recover(generations, number, fault)
                text = fault.error.reason + step.note
                findings.append(fail("generations", text, mend=step.command))
            elif fault:
                findings.append(warn("generations", fault.error.reason, mend=_drop(where, number)))
        if current not in generations.numbers() and generations.numbers():
            text = f"the current generation is {current or 'none'}, which is not there"
            findings.append(fail("generations", text, mend=_back(generations)))
    yield from findings or [ok("generations", f"{count} generations")]


def check_store(subject: Subject) -> Iterator[Finding]:
    """Check the stored copies of everything that a generation needs."""
    store, findings = Store(subject.home), []
    needs = needed(subject.home)
    for digest in sorted(needs.keys() | store.digests()):
        need = needs.get(digest)
        fault = fault_of_copy(store, digest, deep=subject.deep)
        if fault is None:
            continue
        if need is None:
            mend = f"rm -r {shlex.quote(str(store.folder / digest))}"
            findings.append(warn("store", f"needed by nothing, {fault}", mend=mend))
        elif need.is_current:
            again = store_again(need, store)
            text = f"{need.name}: {fault}{again.note}"
            findings.append(fail("store", text, mend=again.command))
        else:
            text = f"{need.name}, of an earlier generation: {fault}"
            mend = _drop(need.where, *need.generations)
            findings.append(warn("store", text, mend=mend))
    how = "hashed" if subject.deep else "their manifests hashed (all bytes: --deep)"
    yield from findings or [ok("store", f"{len(store.digests())} packages, {how}")]


@dataclass(frozen=True, kw_only=True)
class Need:
    """A digest that generations need.

    Attributes:
        name: The id of the expert, or of the backbone.
        kind: Which of the two it is.
        dist: The distribution that it came from.
        version: Its version.
        digest: The digest.
        where: The home of the generations, that of a question or not.
        generations: Their numbers.
        is_current: Whether the current one is among them.
    """

    name: str
    kind: Kind
    dist: str
    version: str
    digest: str
    where: Path
    generations: tuple[int, ...]
    is_current: bool


def needed(home: Path) -> dict[str, Need]:
    """Return what the generations of a home and its questions need, by digest.

    Where several questions need one digest, one that needs it now is returned.
    """
    needs: dict[str, Need] = {}
    for where in homes_with(home):
        generations = Generations(where)
        current = _current(generations)
        for record in generations.history():
            for need in _needs(record, where, current=current):
                known = needs.get(need.digest)
                if known is None or (need.is_current and not known.is_current):
                    needs[need.digest] = need
                elif known.where == where:
                    numbers = (*known.generations, record.number)
                    needs[need.digest] = replace(known, generations=numbers)
    return needs


def fault_of_copy(store: Store, digest: str, *, deep: bool) -> str | None:
    """Return what is wrong with a stored copy; None if nothing is.

    Args:
        store: The store.
        digest: The digest that it should have.
        deep: Whether every byte is hashed.
    """
    if not store.has(digest):
        return f"{short(digest)} is not in the store"
    try:
        names = {p.name for p in (store.folder / digest).iterdir()}
        kind: Kind = "backbone" if MANIFESTS["backbone"] in names else "expert"
        raw = store.file(digest, MANIFESTS[kind])
        manifest = (parse_backbone if kind == "backbone" else parse_expert)(raw).value
        if manifest is None or package_digest(raw, manifest) != digest:
            return f"the manifest of {short(digest)} is damaged"
        if missing := sorted({p.file for p in parts_of(manifest)} - names):
            return f"{short(digest)} lacks {missing[0]}"
        if deep:
            read = read_backbone if kind == "backbone" else read_expert
            read(store.get(digest), checked_digest=digest).unwrap(f"stored {manifest.id!r}")
    except RedhostError as e:
        return e.reason
    except OSError as e:
        return f"{short(digest)} cannot be read: {e.strerror}"
    return None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a generation.

    Attributes:
        error: The error that reading it raises.
        file: The file that is damaged; None for the record.
    """

    error: RedhostError
    file: str | None = None


def fault_of_generation(generations: Generations, number: int, *, files: bool) -> Fault | None:
    """Return the first thing that is wrong with a generation; None if nothing is.

    Args:
        generations: The generations of a home.
        number: Its number.
        files: Whether its files are hashed too, and not its record alone.
    """
    try:
        record = generations.load(number)
    except (IntegrityError, UnknownNameError, StoreError) as e:
        return Fault(error=e)
    for name in record.files if files else ():
        try:
            generations.file(record, name)
        except (IntegrityError, StoreError) as e:
            return Fault(error=e, file=name)
    return None


def complete(generations: Generations) -> list[int]:
    """Return the generations that can be made current, newest first."""
    numbers = []
    for number in reversed(generations.numbers()):
        if fault_of_generation(generations, number, files=True) is None:
            record = generations.load(number)
            if generations.refusal(record) is None and all(
                fault_of_copy(generations.store, d, deep=True) is None for d in record.digests()
            ):
                numbers.append(number)
    return numbers


@dataclass(frozen=True, kw_only=True)
class Back(Step):
    """A rollback.

    Attributes:
        number: The generation that it makes current.
    """

    number: int


def roll_back(generations: Generations, *, before: int) -> Back | None:
    """Return the step to the newest whole generation before one; None if there is none."""
    usable = [n for n in complete(generations) if n < before]
    if not usable:
        return None
    number, root = usable[0], root_of(generations.home)
    members, note = generations.load(number).members(), ""
    with suppress(IntegrityError, UnknownNameError, StoreError):
        now = generations.load(before).members()
        changes = [f"no {i}" for i in sorted(now.keys() - members.keys())]
        changes += [f"{i} again" for i in sorted(members.keys() - now.keys())]
        both = sorted(now.keys() & members.keys())
        changes += [f"another build of {i}" for i in both if now[i] != members[i]]
        note = ", ".join(changes) or "the same experts"
    note = f"; generation {number} has {note or ', '.join(sorted(members))}"
    command = ("rollback", str(number))
    question = question_of(generations.home)
    return Back(
        command=redhost_command(*command, home=root, question=question), note=note, number=number
    )


def _back(generations: Generations) -> str:
    """Return the command that makes a generation current whose bytes are all there.

    It is the one that the lock was derived from, else the newest.
    """
    where, usable = generations.home, complete(generations)
    root, question = root_of(where), question_of(where)
    if usable:
        with suppress(StoreError):
            lock = read_lock(where / LOCK)
            usable.sort(key=lambda n: lock != lock_for(generations.load(n)))
        return redhost_command("rollback", str(usable[0]), home=root, question=question)
    anew = redhost_command("recompose", home=root, question=question)
    return f"rm -f {shlex.quote(str(where / 'current'))} && {anew}"


def _recover(generations: Generations, number: int, fault: Fault) -> Step:
    """Return the step after which the current generation is not the damaged one."""
    anew = partial(
        redhost_command, home=root_of(generations.home), question=question_of(generations.home)
    )
    if fault.file == RECEIPT:  # what answers is whole
        return Step(command=anew("recompose"))
    installed = installed_digests()
    with suppress(IntegrityError, UnknownNameError):  # the record may be what is damaged
        members = generations.load(number).experts
        if all(m.digest in installed.get(m.id, ()) for m in members):
            return Step(command=anew("recompose", "--accept"))
    return roll_back(generations, before=number) or Step(command=anew("recompose", "--accept"))


def store_again(need: Need, store: Store) -> Step:
    """Return the step after which the store has what the current generation needs.

    The same content from what is installed, or from its wheel; else another build of it that is
    installed; only then an earlier generation.
    """
    anew = partial(redhost_command, home=root_of(need.where), question=question_of(need.where))
    of_dist = [p for p in discover(need.kind) if canonical(p.dist) == canonical(need.dist)]
    read = read_backbone if need.kind == "backbone" else read_expert
    installed = [files.digest for p in of_dist if (files := read(p).value)]
    is_off = bool(disabled_names(store.home) & {need.name, need.dist})
    if need.digest in installed and not is_off:
        return Step(command=anew("recompose"))
    wheel = wheel_with(need.kind, need.dist, need.version, digest=need.digest)
    if wheel is not None and not is_off:
        command = pip_command("install", *AGAIN, str(wheel))
        return Step(command=f"{command} && {anew('recompose')}")
    if installed and not is_off:  # another build of it, with which nothing can be compared
        return Step(command=anew("recompose", "--accept"))
    generations = Generations(need.where)
    current = _current(generations)
    back = roll_back(generations, before=current) if current is not None else None
    if back is not None:
        return back
    if of_dist:
        return Step(command=anew("recompose", "--accept"))
    return _installed_again(need, anew("recompose"))


def _installed_again(need: Need, anew: str) -> Step:
    """Return the step that installs what is gone from where it came from, and composes it."""
    source = source_of(need.where, need.dist, need.version)
    command = install_command(need.dist, need.version, source=source)
    if not command:
        return Step(command="", note=unknown_source(command, need.dist, need.version))
    return Step(command=f"{command} && {anew}")


def _drop(where: Path, *numbers: int) -> str:
    """Return the command that removes earlier generations, and as few others as it can."""
    generations = Generations(where)
    keep, number = 0, _current(generations)
    while number is not None and number not in numbers:
        keep += 1
        try:
            number = generations.load(number).parent
        except (IntegrityError, UnknownNameError):
            break
    command = ("gc", f"--keep={max(1, keep)}")
    return redhost_command(*command, home=root_of(where), question=question_of(where))


def _current(generations: Generations) -> int | None:
    with suppress(StoreError):
        return generations.current()
    return None


def _needs(record: Composition, where: Path, *, current: int | None) -> Iterator[Need]:
    backbone = record.backbone
    parts: list[tuple[Kind, str, str, str, str]] = [
        ("expert", m.id, m.dist, m.version, m.digest) for m in record.experts
    ]
    if backbone.digest:  # one from a hub has no stored copy
        parts.append(("backbone", backbone.id, backbone.dist, backbone.version, backbone.digest))
    for kind, name, dist, version, digest in parts:
        yield Need(
            name=name,
            kind=kind,
            dist=dist,
            version=version,
            digest=digest,
            where=where,
            generations=(record.number,),
            is_current=record.number == current,
        )
