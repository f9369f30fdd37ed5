"""Whether an expert answers, why it does not, and what to type next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redhost.core.receipt import Receipt
from redhost.registry.environment.status import PackageStatus
from redhost.registry.home.composition import Composition, Member
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import root_of
from redhost.registry.home.store import Store
from redhost_doctor.composed import Comparison, restored, revoked_text, trusting
from redhost_doctor.install import install_command
from redhost_doctor.shell import pip_command, redhost_command
from redhost_doctor.source import source_of, unknown_source
from redhost_doctor.stored import fault_of_copy, needed, roll_back, store_again

DRY_RUN = "a dry run says why, or that a recompose takes it up, and changes nothing"

State = Literal[
    "composed",
    "changed",
    "uninstalled",
    "disabled",
    "damaged",
    "broken",
    "incompatible",
    "revoked",
    "left_out",
    "new",
    "withdrawn",
]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where an expert stands.

    Attributes:
        state: A stable word.
        reason: Why, as a sentence; empty for one that is composed as it is installed.
        command: What to type next; empty if there is nothing to do.
    """

    state: State
    reason: str = ""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Traces:
    """What there is of an expert in a home and its environment.

    Attributes:
        id: Its id.
        composed: The question that it answers, with what is composed and installed.
        member: Its entry in the current generation; None if it does not answer.
        statuses: Installed packages with its id; several claim it if there are more than one.
        records: The generations that it is or was a member of, ascending.
        receipt: The receipt of the current generation.
        is_off: Whether the user disabled it.
    """

    id: str
    composed: Comparison
    member: Member | None
    statuses: tuple[PackageStatus, ...]
    records: tuple[Composition, ...]
    receipt: Receipt | None
    is_off: bool


def standing(traces: Traces) -> Standing:
    """Return where an expert stands."""
    if (revoked := _revoked(traces)) is not None:
        return revoked
    if traces.member is not None:
        return _of_member(traces, traces.member)
    if traces.statuses:
        return _of_newcomer(traces, traces.statuses[0])
    if traces.is_off:
        enable = redhost_command("enable", traces.id, home=root_of(traces.composed.where))
        return Standing(state="disabled", reason="disabled, and not installed", command=enable)
    if traces.records:
        return _of_former(traces)
    left = traces.composed.left_out.get(traces.id)
    reason = f"left out of the current generation ({left.reason}), and since " if left else ""
    return Standing(state="uninstalled", reason=f"{reason}not installed")


def _revoked(traces: Traces) -> Standing | None:
    """Return where an expert stands that nobody may use; None if it may be used."""
    composed, member = traces.composed, traces.member
    if member is not None:
        if member.digest not in composed.revoked:
            return None
        reason = revoked_text(composed, member.digest, member.dist)
        return Standing(state="revoked", reason=reason, command=composed.command("recompose"))
    status = next((s for s in traces.statuses[:1] if s.code == "revoked"), None)
    if status is None:
        return None
    dist = status.package.dist
    reason = revoked_text(composed, status.digest or "", dist)
    gone = pip_command("uninstall", "--yes", dist)
    return Standing(state="revoked", reason=reason, command=gone)


def _of_member(traces: Traces, member: Member) -> Standing:
    """Return where an expert stands that answers."""
    composed, statuses = traces.composed, traces.statuses
    anew = composed.command("recompose")
    store = Store(composed.where)
    fault = fault_of_copy(store, member.digest, deep=True)
    if fault is not None:
        need = needed(root_of(composed.where))[member.digest]
        again = store_again(need, store)
        return Standing(state="damaged", reason=fault + again.note, command=again.command)
    if not statuses:
        reason = "not installed: it answers from the store, and the next recompose withdraws it"
        source = source_of(composed.where, member.dist, member.version)
        install = install_command(member.dist, member.version, source=source)
        reason += unknown_source(install, member.dist, member.version)
        # Where nobody knows its wheel, sync would find none.
        command = (composed.sync(member.id) if install else "") or anew
        return Standing(state="uninstalled", reason=reason, command=command)
    status = next((s for s in statuses if s.package.dist == member.dist), statuses[0])
    if status.code == "disabled":
        reason = "by you; it answers until the next recompose withdraws it"
        return Standing(state="disabled", reason=reason, command=anew)
    if status.code is not None:
        reason = f"what is installed fails its contract ({status.code}): {status.reason}"
        mend = ""
        # Of these two the same build again mends nothing.
        if status.code not in {"backbone_mismatch", "revoked"}:
            mend = restored(composed, status, store=store, digest=member.digest)
        mend = mend or composed.sync(member.id)
        mend = mend or redhost_command("check", traces.id, home=root_of(composed.where))
        return Standing(state="broken", reason=f"{reason}. {status.hint}", command=mend)
    if status.digest != member.digest:
        reason = f"{status.package} is installed, and {member.dist} {member.version} answers"
        if (left := composed.refused(status)) is not None:
            reason += f" ({left.code}: {left.reason})"
        command = composed.command("recompose", "--dry-run")
        return Standing(state="changed", reason=f"{reason}; {DRY_RUN}", command=command)
    trust = trusting(status.manifest)
    reason = "but the plugin of its form is not trusted, so that nothing answers" if trust else ""
    return Standing(state="composed", reason=reason, command=trust)


def _of_newcomer(traces: Traces, status: PackageStatus) -> Standing:
    """Return where an installed expert stands that does not answer."""
    composed, home = traces.composed, root_of(traces.composed.where)
    if status.code == "disabled":
        enable = redhost_command("enable", _off_name(traces, status), home=home)
        return Standing(state="disabled", reason="by you", command=enable)
    if status.code is not None:
        state: State = "incompatible" if status.state == "valid" else "broken"
        mend = restored(composed, status) if state == "broken" else ""
        command = mend or redhost_command("check", status.id or status.package.dist, home=home)
        reason = f"{status.code}: {status.reason}. {status.hint}"
        return Standing(state=state, reason=reason, command=command)
    dry_run = composed.command("recompose", "--dry-run")
    if (left := composed.refused(status)) is not None:
        trust = trusting(status.manifest)
        then = "trust its plugin if you trust its code, then recompose" if trust else DRY_RUN
        reason = f"{left.code}: {left.reason}; {then}"
        return Standing(state="left_out", reason=reason, command=trust or dry_run)
    if composed.record is None:
        anew = composed.command("recompose")
        return Standing(state="new", reason="nothing is composed yet", command=anew)
    reason = f"no part of generation {composed.record.number}, not taken up yet or refused"
    if left := composed.left_out.get(traces.id):
        reason += f" (the one installed at its time: {left.code}: {left.reason})"
    return Standing(state="new", reason=f"{reason}; {DRY_RUN}", command=dry_run)


def _of_former(traces: Traces) -> Standing:
    """Return where an expert stands that answered once, and is not installed."""
    last = traces.records[-1]
    reason = f"not installed, and last in generation {last.number}"
    lost = traces.receipt and traces.receipt.accuracy.withdrawn.get(traces.id)
    if lost:
        reason += f"; accuracy on its gate rows fell from {lost.before:.3f} to {lost.after:.3f}"
    member = next(m for m in last.experts if m.id == traces.id)
    generations, record = Generations(traces.composed.where), traces.composed.record
    back = roll_back(generations, before=record.number) if record else None
    if back is not None and back.number == last.number:
        reason, command = reason + back.note, back.command
    else:
        source = source_of(traces.composed.where, member.dist, member.version)
        command = install_command(member.dist, member.version, source=source)
        reason += unknown_source(command, member.dist, member.version)
    return Standing(state="withdrawn", reason=reason, command=command)


def _off_name(traces: Traces, status: PackageStatus) -> str:
    """Return the name by which an expert was disabled: its id, or its distribution."""
    return traces.id if traces.is_off else status.package.dist
