"""A signed list of what is revoked: read, sign, verify.

The signature is over the list without its signature, as `dumps` writes it: a closed schema has one
form, so that nothing unsigned can stand in the file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from redhost_author.signing import make_signer

from redhost.registry.errors import IntegrityError, UsageError, short
from redhost.registry.home.revoked import REVOKED, RevokedList
from redhost.registry.package.manifest import dumps
from redhost.registry.wheel.signing import PublicKey, verify

MOST = 2**22
"""Most bytes of a list: some ten thousand entries."""

_UNCHANGED = "What this home knows is unchanged. Ask who publishes it."


def decode_list(data: bytes, *, where: str) -> RevokedList:
    """Return the list in a file, unverified.

    Raises:
        IntegrityError: If it is too large, truncated, or of another schema.
    """
    if len(data) > MOST:
        raise IntegrityError(
            f"the list of {where} was refused",
            expected=f"at most {MOST:,} B",
            found=f"{len(data):,} B",
            hint=_UNCHANGED,
        )
    try:
        return msgspec.json.decode(data, type=RevokedList)
    except (ValueError, RecursionError) as e:
        raise IntegrityError(
            f"the list of {where} was refused",
            expected="redhost.revoked/1",
            found=str(e)[:200],
            hint=_UNCHANGED,
        ) from e


def sign_list(unsigned: RevokedList, *, key: Path) -> RevokedList:
    """Return a list with the signature of a private key.

    Raises:
        UsageError: If it is too large, or the key is not a private one of a supported curve.
    """
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        path = Path(folder) / REVOKED
        path.write_bytes(_content(unsigned))
        signature = json.loads(make_signer(key)(path).read_bytes())
    signed = msgspec.structs.replace(unsigned, signature=signature)
    if (size := len(dumps(signed))) > MOST:
        raise UsageError(
            "a list of what is revoked", expected=f"at most {MOST:,} B", found=f"{size:,} B"
        )
    return signed


def verified_list(
    data: bytes, *, keys: Sequence[PublicKey], where: str
) -> tuple[PublicKey, RevokedList]:
    """Return a list, and the key that signed it.

    Args:
        data: The file.
        keys: The keys that are trusted.
        where: Its place, for messages.

    Raises:
        IntegrityError: If none of the keys signed it, or as `decode_list`.
    """
    found = decode_list(data, where=where)
    signature = json.dumps(found.signature).encode()
    checked = verify(_content(found), signature, keys=keys, name=REVOKED)
    if checked.value is None:
        problem = checked.violations[0].found
        raise IntegrityError(
            f"the list of {where} was refused",
            expected=f"a signature by {', '.join(short(key.fingerprint) for key in keys)}",
            found="another list's signature" if "something else" in problem else problem,
            hint=_UNCHANGED,
        )
    return checked.value, found


def _content(signed: RevokedList) -> bytes:
    """Return what is signed."""
    return dumps(msgspec.structs.replace(signed, signature={}))
