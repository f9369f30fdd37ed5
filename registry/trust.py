"""Which plugins the user trusts, by content: recorded per user, never in a project.

A plugin that changed since is not trusted any more. Python has no sandbox: a trusted plugin can do
whatever the user can.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from . import atomic
from .code import digest_of, verified_digest
from .discover import canonical
from .errors import StoreError
from .manifest import dumps
from .writer import WriterLock

__all__ = ["config_folder", "digest_of", "distrust", "is_trusted", "trust", "trusted"]


class _Trusted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["redhost.trust/1"] = "redhost.trust/1"
    digests: dict[str, str] = {}


def config_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder of settings; ``REDHOST_CONFIG`` names another."""
    if env.get("REDHOST_CONFIG"):
        return Path(env["REDHOST_CONFIG"])
    from platformdirs import user_config_dir

    return Path(user_config_dir("redhost"))


def trusted(*, folder: Path | None = None) -> dict[str, str]:
    """Return distribution → digest of the content the user agreed to run.

    Args:
        folder: Where ``trust.json`` lies; the user's own folder when None.

    Raises:
        StoreError: If the record cannot be understood.
    """
    path = _path(folder)
    try:
        return dict(msgspec.json.decode(path.read_bytes(), type=_Trusted).digests)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        hint = "Remove it, then trust again what should be."
        raise StoreError(f"cannot read {path}", found=str(e), hint=hint) from e


def is_trusted(dist: str, *, folder: Path | None = None) -> bool:
    """Tell whether a distribution's content is what the user agreed to."""
    known = trusted(folder=folder).get(canonical(dist))
    return known is not None and known == digest_of(dist)


def trust(dist: str, *, folder: Path | None = None) -> str:
    """Record that the user agrees to run a distribution as it is now; return its digest.

    Raises:
        UnknownNameError: If it is not installed.
        IntegrityError: If any of its files is not what its RECORD says.
    """
    digest = verified_digest(dist)
    _change({canonical(dist): digest}, folder)
    return digest


def distrust(dist: str, *, folder: Path | None = None) -> None:
    """Forget that a distribution was trusted."""
    _change({canonical(dist): None}, folder)


def _change(changes: Mapping[str, str | None], folder: Path | None) -> None:
    path = _path(folder)
    with WriterLock(path.parent).hold():
        atomic.sweep(path.parent)
        merged: dict[str, str | None] = {**trusted(folder=folder), **changes}
        kept = {dist: digest for dist, digest in sorted(merged.items()) if digest}
        atomic.write_atomic(path, dumps(_Trusted(digests=kept)))


def _path(folder: Path | None) -> Path:
    return (folder or config_folder()) / "trust.json"
