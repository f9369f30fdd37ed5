"""What a home knows to be revoked: keep a verified list, allow a digest even so, show it all.

Every trusted key may revoke every digest. Its list replaces only its own earlier list: a key that
is trusted for one publisher's wheels can neither lift nor hold back what another one revoked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from redhost.registry.errors import IntegrityError, StoreError, UsageError, short
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import homes_with, root_of
from redhost.registry.home.revoked import Revocation, Revocations, RevokedList
from redhost.registry.wheel.signing import PublicKey

from .fetch import Fetched
from .lists import verified_list


class KnownList(Struct, frozen=True, kw_only=True):
    """The last list of a key.

    Attributes:
        signer: The key's fingerprint.
        serial: The list's serial.
        entries: What it revokes.
    """

    signer: str
    serial: int
    entries: tuple[Revocation, ...]


class Known(Struct, frozen=True, kw_only=True):
    """What a home knows.

    Attributes:
        home: The state folder.
        lists: The last list of each key.
        allowed: Digests that are allowed even so.
        revoked: Digests that may not be used.
        composed: Of these, the ones that a current generation has.
        changed: Whether the command changed anything.
        lifted: What the lists that were fetched no longer revoke, and no other list does.
        behind: Places whose list is older than that of another place: nothing was taken from them.
    """

    home: str
    lists: tuple[KnownList, ...]
    allowed: tuple[str, ...]
    revoked: tuple[str, ...]
    composed: tuple[str, ...]
    changed: bool
    lifted: tuple[Revocation, ...] = ()
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Change:
    """What newer lists changed.

    Attributes:
        changed: Whether anything was new.
        lifted: What is no longer revoked by any list.
        behind: Places with an older list of a key than another place has.
    """

    changed: bool
    lifted: tuple[Revocation, ...] = ()
    behind: tuple[str, ...] = ()


def keep_lists(home: Path, fetched: Iterable[Fetched], *, keys: Sequence[PublicKey]) -> Change:
    """Verify lists, and store the newest of each key if it is newer; all of them or none.

    Raises:
        UsageError: If no key is trusted.
        IntegrityError: If a list is forged, damaged, or older than the one known.
    """
    if not keys:
        raise UsageError(
            "no key is trusted to revoke",
            expected="--key PUB.pem, or keys in [tool.redhost]",
            found="neither",
            hint="--key follows a list and no more; keys in [tool.redhost] also refuse wheels that "
            "none of them signed. Obtain a key elsewhere than from the index.",
        )
    verified = [(x, *verified_list(x.data, keys=keys, where=x.where)) for x in fetched]
    generations = Generations(root_of(home))
    with generations.writer():
        try:
            known = generations.store.revocations()
        except StoreError:  # damaged: replaced at once, never removed first
            known = Revocations()
        newest, behind = _newest(verified)
        for signer, (newer, where) in newest.items():
            _require_newer(known.lists.get(signer), newer, where=where)
        lists = {**known.lists, **{signer: newer for signer, (newer, _) in newest.items()}}
        if lists == known.lists:
            return Change(changed=False, behind=behind)
        generations.store.write_revocations(msgspec.structs.replace(known, lists=lists))
    before, after = _entries(known.lists), _entries(lists)
    lifted = tuple(entry for digest, entry in before.items() if digest not in after)
    return Change(changed=True, lifted=lifted, behind=behind)


def _newest(
    verified: Iterable[tuple[Fetched, PublicKey, RevokedList]],
) -> tuple[dict[str, tuple[RevokedList, str]], tuple[str, ...]]:
    """Return the newest list of each key, with its place; and the places that have an older one.

    Raises:
        IntegrityError: If two lists of one key have one serial and other entries.
    """
    newest, behind = dict[str, tuple[RevokedList, str]](), list[str]()
    for one, key, found in sorted(verified, key=lambda x: -x[2].serial):
        best, where = newest.setdefault(key.fingerprint, (found, one.where))
        if found.serial < best.serial:
            behind.append(f"{one.where} has serial {found.serial}, {where} {best.serial}")
        else:
            _require_newer(best, found, where=one.where)
    return newest, tuple(behind)


def _entries(lists: Mapping[str, RevokedList]) -> dict[str, Revocation]:
    """Return what lists revoke, by digest."""
    return {entry.digest: entry for one in lists.values() for entry in one.entries}


def _require_newer(old: RevokedList | None, new: RevokedList, *, where: str) -> None:
    """Refuse to go back: an old list lifts what was revoked since."""
    same = old is not None and old.entries == new.entries
    if old is None or new.serial > old.serial or (new.serial == old.serial and same):
        return
    twice = new.serial == old.serial
    raise IntegrityError(
        f"the list of {where} was refused: it is not newer than the one known",
        expected=f"a serial above {old.serial}" if twice else f"a serial of {old.serial} or more",
        found="other entries under that serial" if twice else f"{new.serial}",
        hint="What this home knows is unchanged. Ask who publishes it: a key has one list, which "
        "'redhost revoke --list FILE' goes on with.",
    )


def allow(home: Path, digests: Iterable[str], *, forbid: Iterable[str] = ()) -> bool:
    """Allow digests in this home although they are revoked, or no longer; return if that is new.

    Raises:
        UsageError: If one is not revoked, or is not allowed.
    """
    generations = Generations(root_of(home))
    with generations.writer():
        known = generations.store.revocations()
        listed = {entry.digest for one in known.lists.values() for entry in one.entries}
        for digest in digests:
            _require(digest, listed, "is not revoked here")
        for digest in forbid:
            _require(digest, known.allowed, "is not allowed here")
        allowed = tuple(sorted({*known.allowed, *digests} - {*forbid}))
        if allowed == known.allowed:
            return False
        generations.store.write_revocations(msgspec.structs.replace(known, allowed=allowed))
    return True


def forget(home: Path, signers: Sequence[str]) -> bool:
    """Drop the lists of keys that are no longer trusted, and what they revoked; return if any was.

    Args:
        home: The state folder.
        signers: Fingerprints.

    Raises:
        UsageError: If there is no list of such a key.
    """
    generations = Generations(root_of(home))
    with generations.writer():
        known = generations.store.revocations()
        for signer in signers:
            if signer not in known.lists:
                raise UsageError(
                    f"there is no list of the key {signer[:64]!r}",
                    expected="a whole fingerprint",
                    hint="'redhost revoked --json' has them.",
                )
        lists = {signer: one for signer, one in known.lists.items() if signer not in {*signers}}
        if lists == known.lists:
            return False
        generations.store.write_revocations(msgspec.structs.replace(known, lists=lists))
    return True


def _require(digest: str, digests: Iterable[str], problem: str) -> None:
    if digest not in digests:
        raise UsageError(
            f"{digest[:64]!r} {problem}",
            expected="a whole digest",
            hint="'redhost revoked' lists them.",
        )


def known_in(home: Path, *, changed: bool = False, change: Change | None = None) -> Known:
    """Return what a home knows.

    Args:
        home: The state folder.
        changed: Whether the command changed anything.
        change: What newer lists changed.

    Raises:
        StoreError: If that cannot be read.
    """
    store = Generations(root_of(home)).store
    revocations, revoked = store.revocations(), store.revoked()
    composed = set[str]()
    for where in homes_with(home):
        generations = Generations(where)
        if (number := generations.current()) is not None:
            composed |= generations.load(number).digests() & revoked.keys()
    return Known(
        home=str(home),
        lists=tuple(
            KnownList(signer=signer, serial=one.serial, entries=one.entries)
            for signer, one in sorted(revocations.lists.items())
        ),
        allowed=revocations.allowed,
        revoked=tuple(sorted(revoked)),
        composed=tuple(sorted(composed)),
        changed=changed,
        lifted=change.lifted if change else (),
        behind=change.behind if change else (),
    )


def lines_of(known: Known) -> list[str]:
    """Return what a home knows as lines for a terminal."""
    if not known.lists:
        return [f"{known.home} knows of nothing revoked"]
    lines = []
    for one in known.lists:
        lines.append(f"list of {short(one.signer)}, serial {one.serial}")
        for entry in one.entries:
            name = f"{entry.dist} {entry.version}".strip() or "unknown"
            state = "allowed here" if entry.digest in known.allowed else "revoked"
            composed = ", composed here" if entry.digest in known.composed else ""
            lines.append(f"  {entry.digest}  {name}: {state}{composed}, {entry.reason}")
    lines += (f"behind: {place}; nothing was taken from there" for place in known.behind)
    for entry in known.lifted:
        name = f"{entry.dist} {entry.version}".strip() or "unknown"
        lines.append(f"lifts {name} ({entry.digest[:12]}…)")
    return lines
