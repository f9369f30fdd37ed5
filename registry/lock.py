"""``redhost.lock``: the one file to commit, derived from the current generation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from .composition import BackboneRecord, Composition, Scalar
from .errors import StoreError, short

if TYPE_CHECKING:
    from .states import Listing

__all__ = ["LOCK", "Drift", "LockFile", "LockedExpert", "LockedRouter", "derive", "drift", "read"]

LOCK = "redhost.lock"


class LockedExpert(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An expert that ``--locked`` insists on.

    ``wheel`` is its wheel's sha256, ``signer`` the fingerprint of the key that verified it, where
    they are known.
    """

    dist: str
    version: str
    digest: str
    wheel: str = ""
    signer: str = ""


class LockedRouter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The router that ``--locked`` uses without training."""

    kind: str
    level: str
    digest: str
    seed: int


class LockFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``redhost.lock``.

    Attributes:
        schema: The version of this schema.
        backbone: The backbone's record.
        experts: By id.
        plugins: Those that made a part, distribution → digest.
        router: The router's kind, level, digest and seed.
        output: As the composition has it.
        settings: As the composition has them: none so far. A setting of this host's that a lock
            holds comes before those of the project.
    """

    schema: Literal["redhost.lock/1"] = "redhost.lock/1"
    backbone: BackboneRecord
    experts: dict[str, LockedExpert]
    plugins: dict[str, str] = {}
    router: LockedRouter
    output: str = "residual"
    settings: dict[str, Scalar] = {}


@dataclass(frozen=True)
class Drift:
    """One difference between what is locked and what is installed.

    Attributes:
        id: An expert's id, ``backbone``, or a plugin's distribution.
        kind: ``missing``, ``broken`` or ``disabled`` (locked, but gone, failing or switched off),
            ``changed`` (another digest), ``new`` (installed, but not locked).
        locked: What the lock says.
        installed: What is there.
    """

    id: str
    kind: Literal["missing", "broken", "disabled", "changed", "new"]
    locked: str
    installed: str


def derive(composition: Composition) -> LockFile:
    """Return the lock of a composition; equal compositions give equal bytes."""
    router = composition.router
    return LockFile(
        backbone=composition.backbone,
        experts={
            m.id: LockedExpert(
                dist=m.dist, version=m.version, digest=m.digest, wheel=m.wheel, signer=m.signer
            )
            for m in composition.experts
        },
        plugins=dict(sorted(composition.providers.items())),
        router=LockedRouter(
            kind=router.kind, level=router.level, digest=router.digest, seed=router.seed
        ),
        output=composition.output,
        settings=dict(sorted(composition.settings.items())),
    )


def read(path: Path) -> LockFile | None:
    """Read a lock file; None when there is none.

    Raises:
        StoreError: If it cannot be read or understood.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=LockFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as e:
        hint = "Restore it from version control, or remove it and run 'redhost recompose'."
        raise StoreError(f"cannot read {path}", found=str(e), hint=hint) from e


def drift(
    lock: LockFile,
    listings: Collection[Listing],
    *,
    fingerprint: str | None = None,
    plugins: Mapping[str, str] | None = None,
) -> tuple[Drift, ...]:
    """Compare the lock with what is installed.

    Args:
        lock: The lock.
        listings: What `states.survey` found.
        fingerprint: That of the backbone at hand; not compared when None.
        plugins: Distribution → digest of the plugins in use; not compared when None.

    Returns:
        Every difference, sorted by id; empty when what is installed is what is locked.
    """
    found = list(_expert_drift(lock, listings))
    if fingerprint not in {None, lock.backbone.fingerprint}:
        locked = short(lock.backbone.fingerprint)
        found.append(Drift("backbone", "changed", locked, short(fingerprint or "")))
    if plugins is not None:
        found += _compare(lock.plugins, plugins)
    return tuple(sorted(found, key=lambda one: one.id))


def _expert_drift(lock: LockFile, listings: Collection[Listing]) -> list[Drift]:
    locked = {expert_id: expert.digest for expert_id, expert in lock.experts.items()}
    working = {one.id: one.digest for one in listings if one.id and one.digest and not one.code}
    found = _compare(locked, working)
    failing = {one.id: one for one in listings if one.id and one.code}
    return [
        _failed(one, failing[one.id]) if one.kind == "missing" and one.id in failing else one
        for one in found
    ]


def _failed(one: Drift, listing: Listing) -> Drift:
    """Return the drift of an expert that is installed and cannot, or may not, take part."""
    if listing.code == "disabled":
        return Drift(one.id, "disabled", one.locked, "switched off by you")
    return Drift(one.id, "broken", one.locked, listing.reason or "")


def _compare(locked: Mapping[str, str], installed: Mapping[str, str]) -> list[Drift]:
    found = []
    for name in sorted(locked.keys() | installed.keys()):
        old, new = locked.get(name, ""), installed.get(name, "")
        if old != new:
            kind: Literal["missing", "changed", "new"]
            kind = "missing" if not new else "changed" if old else "new"
            found.append(Drift(name, kind, short(old), short(new)))
    return found
