"""One page on one expert: where it came from, whether it answers, and why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import msgspec

from redhost.core.receipt import Receipt
from redhost.errors import StoreError, UnknownNameError
from redhost.registry.environment.status import PackageStatus
from redhost.registry.errors import MissingError, RedhostError
from redhost.registry.home.composition import Composition, Member
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import place_of, question_of
from redhost.registry.home.store import Store
from redhost.registry.package.discover import MANIFESTS
from redhost.registry.package.manifest import ExpertManifest, parse_expert
from redhost.registry.queries.settings import disabled_names
from redhost_doctor.composed import Comparison, compositions, receipt_of
from redhost_doctor.finding import Subject
from redhost_doctor.origin import Origin, origin_of
from redhost_doctor.standing import State, Traces, standing


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """An installed package of an expert.

    Attributes:
        dist: Its distribution.
        version: That distribution's version.
        origin: Where it was installed from.
        digest: The digest of its content; null if it is not sound.
        state: The last state that it reached, as `list-experts` shows it.
    """

    dist: str
    version: str
    origin: Origin
    digest: str | None
    state: str


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """An expert's entry in the current generation.

    Attributes:
        generation: The current generation.
        since: The generation with which it came in, without a gap.
        created: When that one was published, in ISO 8601.
        is_exact: Whether the generation before `since` is still on disk; else it may have been in
            earlier.
        build_since: The generation since which this build of it answers.
        dist: The distribution that it was composed from.
        version: That distribution's version.
        digest: The digest of its content.
        wheel: The sha256 of the wheel; empty if it was composed from what pip had installed.
        signer: The fingerprint of the key that verified the wheel; empty if no key did.
    """

    generation: int
    since: int
    created: str
    is_exact: bool
    build_since: int
    dist: str
    version: str
    digest: str
    wheel: str
    signer: str


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What an expert answers, as its manifest says.

    Attributes:
        domain: The inputs that it is for.
        labels: The labels that it may answer.
        form: Its form.
        rank: R.
        writes: The space that it writes to.
        backbone: The backbone that it was trained on.
        fingerprint: The fingerprint of that backbone.
        license: The license of its weights.
    """

    domain: str
    labels: tuple[str, ...]
    form: str
    rank: int
    writes: str
    backbone: str
    fingerprint: str
    license: str


class OnGate(msgspec.Struct, frozen=True, kw_only=True):
    """How an expert does, by the receipt of the current generation.

    Attributes:
        rows: The number of its card's gate rows.
        before: The previous composition's accuracy on them, 0–1; null if there is none.
        after: This composition's.
        own: The expert's, alone.
        weight: Its mean weight over the gate rows of all experts; null if it was not measured.
    """

    rows: int
    before: float | None
    after: float | None
    own: float | None
    weight: float | None


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier build of an expert.

    Attributes:
        dist: Its distribution.
        version: That distribution's version.
        digest: The digest of its content.
        generations: The generations on disk that it is a member of.
    """

    dist: str
    version: str
    digest: str
    generations: tuple[int, ...]


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `redhost why`.

    Attributes:
        id: The expert's id.
        question: The question that it answers; null for the default question.
        state: Where it stands: ``composed``, or another build is installed (``changed``), or it is
            ``uninstalled``, ``disabled``, ``damaged`` in the store, ``broken`` or ``incompatible``
            where it is installed, ``revoked``, ``left_out`` by a recompose, ``new``, or
            ``withdrawn``.
        reason: Why; empty for ``composed``.
        command: What to type next; empty if there is nothing to do.
        installed: Installed packages with its id.
        membership: Its entry in the current generation; null if it does not answer.
        offer: What it answers; null if no manifest of it can be read.
        gate: How it does; null if it does not answer, or the receipt is damaged.
        earlier: Earlier builds, the last first.
    """

    id: str
    question: str | None
    state: State
    reason: str
    command: str
    installed: tuple[Installed, ...]
    membership: Membership | None
    offer: Offer | None
    gate: OnGate | None
    earlier: tuple[Build, ...]


def why(home: Path, name: str) -> Why:
    """Return what there is to know of an expert.

    Args:
        home: The state folder.
        name: Its id, or its distribution.

    Raises:
        UnknownNameError: If neither the environment nor the home knows it.
        MissingError: If there are no experts.
    """
    traces = find(home, name)
    records, member = traces.records, traces.member
    where, stands = traces.composed.where, standing(traces)
    # Of one that does not answer any more, the last composition with it knows most.
    last = next((m for r in reversed(records) for m in r.experts if m.id == traces.id), None)
    return Why(
        id=traces.id,
        question=question_of(where),
        state=stands.state,
        reason=stands.reason,
        command=stands.command,
        installed=tuple(
            _installed(status, member or last, where=traces.composed.where)
            for status in traces.statuses
        ),
        membership=_membership(traces, member) if member else None,
        offer=_offer(traces),
        gate=_gate(traces.receipt, traces.id) if member and traces.receipt else None,
        earlier=tuple(_earlier(records, traces.id, but=member.digest if member else "")),
    )


def find(home: Path, name: str) -> Traces:
    """Return what there is of an expert.

    Where several questions know a name, that counts in which it answers, then that for which it is
    installed.

    Raises:
        UnknownNameError: If nothing knows it.
        MissingError: If there are no experts.
    """
    off = disabled_names(home)
    traced, names = list[Traces](), set(off)
    for composed in compositions(Subject(home=home)):
        history = Generations(composed.where).history()
        members = {(m.id, m.dist) for record in history for m in record.experts}
        statuses = composed.inventory.statuses
        installed = {(s.id or s.package.module, s.package.dist) for s in statuses}
        refused = {(i, i) for i in composed.left_out}
        pairs = members | installed | refused
        names |= {x for pair in pairs for x in pair}
        ids = {i for i, dist in pairs if name == i} or {i for i, dist in pairs if name == dist}
        traced += (_traces(composed, history, i, off=off) for i in sorted(ids))
    if traced:
        return max(traced, key=lambda t: (t.member is not None, bool(t.statuses), bool(t.records)))
    if name in off:
        composed = next(compositions(Subject(home=home)))
        return _traces(composed, [], name, off=off)
    raise unknown(name, names)


def unknown(name: str, names: Collection[str]) -> RedhostError:
    """Return the error of a name that is none of an expert's, with the next step."""
    if names:
        return UnknownNameError("expert", name, names)
    hint = "Install one, 'pip install red-expert-NAME', or make one with 'redhost new-expert'."
    return MissingError(f"no expert {name!r}: none is installed or composed", hint=hint)


def _traces(
    composed: Comparison, history: Sequence[Composition], expert_id: str, *, off: frozenset[str]
) -> Traces:
    record = composed.record
    members = {m.id: m for m in record.experts} if record else {}
    return Traces(
        id=expert_id,
        composed=composed,
        member=members.get(expert_id),
        statuses=tuple(s for s in composed.inventory.statuses if _id(s) == expert_id),
        records=tuple(r for r in history if expert_id in r.members()),
        receipt=receipt_of(composed.where, record),
        is_off=expert_id in off,
    )


def _id(status: PackageStatus) -> str:
    return status.id or status.package.module


def _installed(status: PackageStatus, member: Member | None, *, where: Path) -> Installed:
    package, origin = status.package, origin_of(status.package.info)
    if member is not None and member.wheel and origin == Origin(kind="index"):
        # What pip was given by redhost is not recorded by pip, but by the composition.
        same = (package.dist, package.version) == (member.dist, member.version)
        if same and status.digest in {None, member.digest}:
            named = member.source and not member.source.endswith(".whl")
            origin = Origin(
                kind="index" if named else "added", place=place_of(member.source, where)
            )
    return Installed(
        dist=package.dist,
        version=package.version,
        origin=origin,
        digest=status.digest,
        state=status.state,
    )


def _membership(traces: Traces, member: Member) -> Membership:
    """Return since when an expert is in."""
    chain = _chain(traces)
    builds = [*takewhile(lambda record: record.members()[member.id] == member.digest, chain)]
    current, first = chain[0], chain[-1]
    present = Generations(traces.composed.where).numbers()
    return Membership(
        generation=current.number,
        since=first.number,
        created=first.created,
        is_exact=first.parent is None or first.parent in present,
        build_since=builds[-1].number,
        dist=member.dist,
        version=member.version,
        digest=member.digest,
        wheel=member.wheel,
        signer=member.signer,
    )


def _chain(traces: Traces) -> list[Composition]:
    """Return the current generation, its parent, and so on, as long as the expert is a member."""
    by_number = {record.number: record for record in traces.records}
    chain, record = list[Composition](), traces.composed.record
    while record is not None and record.number in by_number:
        chain.append(record)
        record = by_number.get(record.parent or 0)
    return chain


def _offer(traces: Traces) -> Offer | None:
    """Return what an expert answers: by what is composed, else installed, else composed last."""
    manifest = _manifest(traces)
    if manifest is None:
        return None
    return Offer(
        domain=manifest.domain,
        labels=manifest.labels,
        form=manifest.form,
        rank=manifest.rank,
        writes=manifest.writes.space,
        backbone=manifest.backbone.name,
        fingerprint=manifest.backbone.fingerprint,
        license=manifest.license,
    )


def _manifest(traces: Traces) -> ExpertManifest | None:
    newest = traces.records[-1:] if traces.member is None else ()
    digests = [traces.member.digest] if traces.member else []
    digests += [record.members()[traces.id] for record in newest]
    installed = next((s.manifest for s in traces.statuses if s.manifest), None)
    if traces.member is None and installed is not None:
        return installed
    for digest in digests:
        with suppress(StoreError):
            raw = Store(traces.composed.where).file(digest, MANIFESTS["expert"])
            if (manifest := parse_expert(raw).value) is not None:
                return manifest
    return installed


def _gate(receipt: Receipt, expert_id: str) -> OnGate:
    accuracy, health = receipt.accuracy, receipt.health
    return OnGate(
        rows=accuracy.rows.get(expert_id, 0),
        before=(accuracy.before or {}).get(expert_id),
        after=accuracy.after.get(expert_id),
        own=accuracy.own.get(expert_id),
        weight=health.usage.get(expert_id) if health else None,
    )


def _earlier(records: Sequence[Composition], expert_id: str, *, but: str) -> Iterator[Build]:
    """Yield the builds of an expert other than the one that answers, the last first."""
    numbers, members = defaultdict[str, list[int]](list), dict[str, Member]()
    for record in records:
        member = next(m for m in record.experts if m.id == expert_id)
        numbers[member.digest].append(record.number)
        members[member.digest] = member
    for digest in sorted(numbers, key=lambda digest: -numbers[digest][-1]):
        if digest != but:
            member = members[digest]
            yield Build(
                dist=member.dist,
                version=member.version,
                digest=digest,
                generations=tuple(numbers[digest]),
            )
