"""Checks of what is composed beside what is installed: lock, drift, backbone, plugins, experts."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path

import msgspec

from redhost.commands.plugins import untrusted_maker
from redhost.core.receipt import LeftOut, Receipt
from redhost.errors import IntegrityError, StoreError, UnknownNameError
from redhost.registry.environment.status import PackageStatus
from redhost.registry.environment.trust import config_folder, digest_of, is_trusted, trusted
from redhost.registry.errors import RedhostError, short
from redhost.registry.home.composition import (
    LOCK,
    Composition,
    LockFile,
    Member,
    lock_for,
    read_lock,
)
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import (
    composed_questions,
    home_of,
    homes_with,
    question_of,
    root_of,
)
from redhost.registry.home.revoked import Revocation
from redhost.registry.home.store import Store
from redhost.registry.package.discover import MANIFESTS, discover
from redhost.registry.package.manifest import ExpertManifest
from redhost.registry.queries.inventory import (
    Drift,
    Inventory,
    current_record,
    drift,
    questions_of,
    take_inventory,
)
from redhost.registry.queries.settings import (
    DISABLED,
    disabled_names,
    load_settings,
    wanted_backbone,
)
from redhost.registry.wheel.signing import read_keys
from redhost_doctor.environment import installed_version
from redhost_doctor.finding import Finding, Subject, fail, ok, warn
from redhost_doctor.install import install_command, restore_command
from redhost_doctor.shell import pip_command, redhost_command
from redhost_doctor.source import arguments_for, source_of, unknown_source
from redhost_doctor.stored import RECEIPT, fault_of_copy

COMPUTED = frozenset(
    ("canary_values", "card_rows", "form_unknown", "harm", "hijack", "norm_bound", "not_computable")
) | {"off_domain", "same_rows", "signature_missing", "tap_order", "tap_unknown", "task_unknown"}
"""Codes of what only a recompose finds; what others stand for, a status shows as well."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A question's composition beside what is installed for it.

    Attributes:
        where: The home of the question.
        record: Its current generation; None if nothing is composed, or its record is damaged.
        inventory: What is installed for it.
    """

    where: Path
    record: Composition | None
    inventory: Inventory

    def command(self, *arguments: str) -> str:
        """Return a command of redhost that acts on this composition."""
        question = question_of(self.where)
        return redhost_command(*arguments, home=root_of(self.where), question=question)

    def sync(self, expert_id: str | None = None) -> str:
        """Return the command that installs what the lock names; empty if there is none.

        Args:
            expert_id: An expert that the lock has to name, with a source of it.
        """
        lock = None
        with suppress(StoreError):
            lock = read_lock(self.where / LOCK)
        if lock is None or installed_version("redhost-sync") is None:
            return ""
        digests = {lock.backbone.digest, *(e.digest for e in lock.experts.values())}
        if not lock.backbone.dist or "" in digests or digests & self.revoked.keys():
            return ""
        known = {i for i, expert in lock.experts.items() if expert.source}
        if expert_id is not None and expert_id not in known:
            return ""
        return redhost_command("sync", home=root_of(self.where))

    @cached_property
    def revoked(self) -> Mapping[str, Revocation]:
        """What the home knows to be revoked, by digest."""
        return Store(self.where).revoked()

    @property
    def about(self) -> str:
        """The beginning of a line about it: empty for the default question."""
        question = question_of(self.where)
        return f"question {question!r}: " if question else ""

    @cached_property
    def left_out(self) -> dict[str, LeftOut]:
        """What its receipt left out, by id; nothing if that is damaged."""
        receipt = receipt_of(self.where, self.record)
        return {x.id: x for x in receipt.left_out} if receipt else {}

    def refused(self, status: PackageStatus) -> LeftOut | None:
        """Return why its receipt left out a package that is sound, if that may still hold.

        It does not if the package was installed since, nor if the reason is one that a check of
        the package alone would find.
        """
        left = self.left_out.get(status.id or "")
        if left is None or left.code not in COMPUTED or self.record is None:
            return None
        published = datetime.fromisoformat(self.record.created).timestamp()
        folder = status.package.folder
        with suppress(OSError):
            if folder and (folder / MANIFESTS["expert"]).stat().st_ctime > published + 1:
                return None
        return left


def receipt_of(where: Path, record: Composition | None) -> Receipt | None:
    """Return the receipt of a generation, None if it is damaged or there is none."""
    with suppress(IntegrityError, StoreError, msgspec.DecodeError):
        if record is not None:
            return msgspec.json.decode(Generations(where).file(record, RECEIPT), type=Receipt)
    return None


def compositions(subject: Subject) -> Iterator[Comparison]:
    """Yield every question's composition of a home, the default question's first."""
    for where in homes_with(subject.home):
        record = record_of(where)
        backbone = record.backbone.id if record else None
        if record is None:
            with suppress(StoreError):  # reported with the lock
                backbone = wanted_backbone(where)
        inventory = take_inventory(where, backbone=backbone, remember=not subject.deep)
        yield Comparison(where=where, record=record, inventory=inventory)


def record_of(where: Path) -> Composition | None:
    """Return the record of the current generation, None if nothing is composed or it is damaged."""
    with suppress(IntegrityError, UnknownNameError, StoreError):
        return current_record(where)
    return None


def check_lock(subject: Subject) -> Iterator[Finding]:
    """Check that each lock file is that of the current generation."""
    findings, count = [], 0
    for composed in compositions(subject):
        count += composed.record is not None
        path = composed.where / LOCK
        try:
            lock, reason = read_lock(path), ""
        except StoreError as e:
            lock, reason = None, e.reason
        record = composed.record
        if record is None:
            if reason:
                anew = composed.command(
                    "recompose", *_option_backbone(composed, question_of(path.parent))
                )
                mend = f"rm {shlex.quote(str(path))} && {anew}"
                findings.append(fail("lock", composed.about + reason, mend=mend))
            continue
        if lock == lock_for(record):
            continue
        back = ("rollback", str(record.number))  # the lock of what is current already
        gone = record.digests() & composed.revoked.keys()
        mend = composed.command(*(("recompose",) if gone else back))
        text = reason or f"{path} is not that of generation {record.number}"
        if lock is not None and agrees(lock, composed.inventory):
            # What it names is here: the composition comes to the lock, not the lock to it.
            stored = {r.router.digest for r in Generations(composed.where).history()}
            locked = ("--locked",) if lock.router.digest in stored else ()
            mend = composed.command("recompose", *locked)
        findings.append(fail("lock", composed.about + text, mend=mend))
    yield from findings or [ok("lock", f"{count} of {count} current generations")]


def agrees(lock: LockFile, inventory: Inventory) -> bool:
    """Return whether what is installed is what a lock names."""
    manifest = inventory.backbone
    return manifest is not None and not drift(
        lock, inventory.statuses, fingerprint=manifest.fingerprint, digest=inventory.digest
    )


def check_experts(subject: Subject) -> Iterator[Finding]:
    """Check that the installed experts are those composed, and are sound."""
    findings, count = list[Finding](), 0
    for composed in compositions(subject):
        count += len(composed.inventory.statuses)
        findings += _experts(composed)
        if composed.where == subject.home:
            findings += _questions(composed)
    yield from findings or [ok("experts", f"{count} are installed")]


def _questions(composed: Comparison) -> Iterator[Finding]:
    """Report experts that answer a question which is not composed."""
    known = {None, *composed_questions(composed.where)}
    for question in questions_of(composed.inventory):
        if question not in known:
            command = ("recompose", *_option_backbone(composed, question))
            mend = redhost_command(*command, home=composed.where, question=question)
            text = f"experts answer question {question!r}, which is not composed"
            yield warn("experts", text, then=mend)


def _option_backbone(composed: Comparison, question: str | None) -> tuple[str, ...]:
    """Return the option that a first recompose needs where several backbones are installed."""
    with suppress(StoreError):
        if len(discover("backbone")) == 1 or wanted_backbone(home_of(composed.where, question)):
            return ()
    statuses = composed.inventory.statuses + composed.inventory.other_questions
    manifests = (x.manifest for x in statuses if x.question == question)
    name = next((m.backbone.name for m in manifests if m), None)
    return ("--backbone", name) if name else ()


def _experts(composed: Comparison) -> Iterator[Finding]:
    record, inventory = composed.record, composed.inventory
    usable = [x for x in inventory.statuses if x.code is None]
    if record is None:
        if usable and inventory.problem is None:
            names = _few([str(x.id) for x in usable])
            mend = composed.command("recompose")
            yield warn("experts", f"{composed.about}nothing is composed of {names}", then=mend)
        members = dict[str, str]()
    else:
        members = record.members()
        yield from _revoked(composed, record.experts)
        yield from _unsigned(composed, record.experts)
        staying = {i for i, digest in members.items() if digest not in composed.revoked}
        differences = [d for d in drift(lock_for(record), inventory.statuses) if d.id in staying]
        yield from _changed(composed, differences)
        yield from _new(composed, [x for x in usable if x.id not in members])
    for status in inventory.statuses:
        digest = members.get(status.id or "")
        if status.code in {None, "disabled"} or digest in composed.revoked:
            continue
        if digest is not None and status.id in {x.id for x in usable}:
            digest = None if status in inventory.elsewhere else digest
        if digest is not None or status not in inventory.elsewhere:
            yield _broken(composed, status, digest)


_CHANGES = {
    "missing": "composed and not installed, so that the next recompose withdraws",
    "disabled": "composed and switched off, so that the next recompose withdraws",
    "changed": "another build is installed than the composed one of",
}


def _changed(composed: Comparison, differences: Sequence[Drift]) -> Iterator[Finding]:
    """Report members that the next recompose would change; one line for each kind of change."""
    by_kind = defaultdict[str, list[str]](list)
    for difference in differences:
        by_kind[difference.kind].append(difference.id)
    for kind, text in _CHANGES.items():
        if ids := by_kind[kind]:
            line = f"{composed.about}{text} {_few(ids)}"
            dry = ("--dry-run",) if kind == "changed" else ()
            sync = composed.sync(ids[0]) if kind == "missing" else ""
            yield warn("experts", line, mend=sync, then=composed.command("recompose", *dry))


def revoked_text(composed: Comparison, digest: str, dist: str) -> str:
    """Return why an expert is revoked, and how another version of it is added."""
    name, source = f"{dist}==VERSION", source_of(composed.where, dist)
    named = [x for x in arguments_for(dist, "VERSION", source=source) if x != "--no-index"]
    add = redhost_command("add", *(named or [name]), home=root_of(composed.where))
    return f"{composed.revoked[digest].why}; another version is added by: {add}"


def _revoked(composed: Comparison, members: Sequence[Member]) -> Iterator[Finding]:
    """Report members that are revoked; a recompose composes without them."""
    for member in members:
        if member.digest in composed.revoked:
            text = f"{member.id} ({member.dist} {member.version}) is revoked: "
            text += revoked_text(composed, member.digest, member.dist)
            yield fail("experts", composed.about + text, then=composed.command("recompose"))


def _unsigned(composed: Comparison, members: Sequence[Member]) -> Iterator[Finding]:
    """Report members that no key vouches for, in a project that names keys."""
    keys, ids = None, [member.id for member in members if not member.signer]
    with suppress(RedhostError):  # `check_settings` reports it
        keys = load_settings().keys
    if ids and keys:
        text = f"{composed.about}keys are set, and composed without a signature: {_few(ids)}; "
        text += "a wheel that one of the keys signed replaces each by 'redhost add'"
        yield warn("experts", text)


def _new(composed: Comparison, statuses: Sequence[PackageStatus]) -> Iterator[Finding]:
    """Report installed experts that are not composed: those not yet, and those left out."""
    refused = {x.id: left for x in statuses if (left := composed.refused(x)) is not None}
    for status in statuses:
        if status.id in refused:
            left = refused[status.id]
            text = f"{status.id} was left out: {left.code}: {left.reason}"
            mend = redhost_command("disable", str(status.id), home=root_of(composed.where))
            mend = trusting(status.manifest) or mend
            then = composed.command("recompose", "--dry-run")
            yield warn("experts", composed.about + text, mend=mend, then=then)
    if ids := [str(x.id) for x in statuses if x.id not in refused]:
        text = f"{composed.about}not composed yet, or refused: {_few(ids)}"
        yield warn("experts", text, then=composed.command("recompose", "--dry-run"))


def _broken(composed: Comparison, status: PackageStatus, digest: str | None) -> Finding:
    """Return the finding of an installed expert that fails its contract."""
    package = status.package
    store = Store(composed.where) if digest else None
    text = f"{composed.about}{status.name}: {status.code}: {status.reason}"
    if status.code == "revoked":  # not composed, or composed from another build
        text = f"{composed.about}{status.name} is revoked: "
        text += revoked_text(composed, status.digest or "", package.dist)
        return warn("experts", text, mend=pip_command("uninstall", "--yes", package.dist))
    off = redhost_command("disable", package.dist, home=root_of(composed.where))
    about_files = status.code not in {"backbone_mismatch", "duplicate_id", "labels_unknown"}
    mend = ""
    if about_files:
        mend = restored(composed, status, store=store, digest=digest or "")
        text += unknown_source(mend, package.dist, package.version)
    if digest is None:
        return warn("experts", text, mend=mend or off)
    if status.code == "duplicate_id":
        return fail("experts", text, mend=_without_rival(composed, status) or off)
    # Without its stored copy, the current generation cannot be compared with.
    lost = fault_of_copy(Store(composed.where), digest, deep=True) is not None
    anew = composed.command("recompose", *(("--accept",) if lost else ()))
    withdraw = f"{off} && {anew}"
    if not mend and (sync := composed.sync(status.id)):
        return fail("experts", text, mend=sync, then=withdraw)
    return fail("experts", text, mend=mend, then="" if mend else withdraw)


def trusting(manifest: ExpertManifest | None) -> str:
    """Return the command that trusts the plugin of an expert's form; empty if none is needed."""
    dist = untrusted_maker(manifest.form) if manifest else None
    return redhost_command("trust", dist) if dist else ""


def restored(
    composed: Comparison, status: PackageStatus, *, store: Store | None = None, digest: str = ""
) -> str:
    """Return the command that puts an expert's package back as it was; empty if there is none."""
    package = status.package
    source = source_of(composed.where, package.dist, package.version)
    return restore_command(package, store=store, digest=digest, name=status.id or "", source=source)


def _without_rival(composed: Comparison, status: PackageStatus) -> str:
    """Return the command that leaves the composed one of several packages with an id."""
    members = composed.record.experts if composed.record else ()
    dists = {m.dist for m in members if m.id == status.id}
    rivals = [x.package.dist for x in composed.inventory.statuses if x.id == status.id]
    others = [d for d in rivals if d not in dists]
    return redhost_command("disable", others[0], home=root_of(composed.where)) if others else ""


def check_settings(subject: Subject) -> Iterator[Finding]:
    """Check the user's decisions: who is disabled, what is trusted, the project's settings."""
    findings = []
    disabled = partial(disabled_names, subject.home)
    for read, path in (
        (disabled, root_of(subject.home) / DISABLED),
        (trusted, config_folder() / "trust.json"),
    ):
        try:
            read()
        except StoreError as e:
            findings.append(fail("settings", e.reason, mend=f"rm {shlex.quote(str(path))}"))
    try:
        read_keys(load_settings().keys or ())
    except RedhostError as e:
        findings.append(fail("settings", str(e)))
    yield from findings or [ok("settings", f"{len(disabled())} experts are disabled")]


def check_plugins(subject: Subject) -> Iterator[Finding]:
    """Check that plugins which made a part of a current generation are here, and trusted."""
    findings, count = list[Finding](), 0
    for where in homes_with(subject.home):
        record = record_of(where)
        for dist, digest in (record.providers if record else {}).items():
            count += 1
            findings += _plugin(where, dist, digest)
    yield from findings or [ok("plugins", f"{count} made a part of what is composed")]


def _plugin(where: Path, dist: str, digest: str) -> Iterator[Finding]:
    command = partial(redhost_command, home=root_of(where), question=question_of(where))
    try:
        here, agreed = digest_of(dist), is_trusted(dist)
    except UnknownNameError:
        text = f"{dist} made a part of what is composed, and is not installed"
        mend = install_command(dist)
        yield fail("plugins", text + unknown_source(mend, dist), mend=mend)
    except RedhostError as e:
        mend = install_command(dist)
        yield fail("plugins", e.reason + unknown_source(mend, dist), mend=mend)
    else:
        if not agreed:
            text = f"{dist} made a part of what is composed, and is not trusted"
            yield fail("plugins", text, mend=redhost_command("trust", dist))
        elif here != digest:
            text = f"{dist} has changed: {short(digest)} made a part of what is composed"
            yield fail("plugins", text, mend=command("recompose", "--accept"))


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"  # noqa: PLR2004
