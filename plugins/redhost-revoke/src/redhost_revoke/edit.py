"""Change a list that one publishes: add an entry, or withdraw one, and sign it anew."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from redhost_author.signing import public_key_of

from redhost.registry.atomic import read_regular, write_atomic
from redhost.registry.errors import StoreError, UsageError, short
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import homes_with
from redhost.registry.home.revoked import Revocation, RevokedList
from redhost.registry.package.manifest import dumps
from redhost.registry.package.readers import read_backbone
from redhost.registry.wheel.wheel import open_wheel

from .lists import MOST, sign_list, verified_list

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is revoked.

    Attributes:
        digest: The digest of its content.
        dist: Its distribution; empty if not known.
        version: Its version.
    """

    digest: str
    dist: str = ""
    version: str = ""


class Edited(Struct, frozen=True, kw_only=True):
    """A list that was changed.

    Attributes:
        file: The file.
        serial: Its serial.
        entries: The number of its entries.
        signer: The fingerprint of the key that signed it.
        digest: The digest that was added or withdrawn.
        withdrawn: Whether it was withdrawn.
        begun: Whether the file was not there: a new list, with serial 1.
    """

    file: str
    serial: int
    entries: int
    signer: str
    digest: str
    withdrawn: bool
    begun: bool = False


def target_of(name: str, *, home: Path) -> Target:
    """Return what a user names: a digest, or the expert or backbone in a wheel.

    Args:
        name: A digest or a path.
        home: A digest that was composed there gets its distribution and version.

    Raises:
        UsageError: If it is neither.
    """
    if _DIGEST.fullmatch(name):
        return _composed(name, home) or Target(digest=name)
    if not Path(name).is_file():
        raise UsageError(
            f"{name!r} cannot be revoked",
            expected="a digest of 64 hexadecimal digits, or a wheel",
            found="neither",
            hint="redhost.lock and 'redhost history --json' have the digests of experts.",
        )
    wheel = open_wheel(Path(name))
    package, files = wheel.package, read_backbone(wheel.files).value
    digest = files.digest if files else wheel.expert.unwrap(f"expert package {package}").digest
    return Target(digest=digest, dist=package.dist, version=package.version)


def _composed(digest: str, home: Path) -> Target | None:
    for where in homes_with(home):
        for record in Generations(where).history():
            for part in record.parts():
                if part.digest == digest:
                    return Target(digest=digest, dist=part.dist, version=part.version)
    return None


def edit_list(
    path: Path, target: Target, *, key: Path, reason: str, withdraw: bool = False
) -> Edited:
    """Add an entry to a list, or withdraw it, and sign it with the next serial.

    Args:
        path: The list; it is begun if it is missing.
        target: What is revoked.
        key: The private key, which must have signed the list so far.
        reason: Why it is revoked.
        withdraw: Whether its entry is lifted instead.

    Raises:
        IntegrityError: If the list is not what this key signed.
        UsageError: If there is no such entry to withdraw.
    """
    public, before = public_key_of(key), RevokedList(serial=1)
    serial, begun = 1, False
    try:
        data = read_regular(path, limit=MOST)
    except FileNotFoundError:
        begun = True
    except OSError as e:
        raise StoreError(f"cannot read {path}", found=str(e)) from e
    else:
        _, before = verified_list(data, keys=(public,), where=str(path))
        serial = before.serial + 1
    entries = tuple(e for e in before.entries if e.digest != target.digest)
    if withdraw and len(entries) == len(before.entries):
        raise UsageError(f"{path} does not revoke {short(target.digest)}", hint="Nothing to lift.")
    if not withdraw:
        entry = Revocation(
            digest=target.digest,
            dist=target.dist,
            version=target.version,
            reason=reason,
            revoked_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        entries = (*entries, entry)
    signed = sign_list(RevokedList(serial=serial, entries=entries), key=key)
    write_atomic(path, dumps(signed))
    return Edited(
        file=str(path),
        serial=serial,
        entries=len(entries),
        signer=public.fingerprint,
        digest=target.digest,
        withdrawn=withdraw,
        begun=begun,
    )
