"""Remember which packages were found valid, so that listing a hundred of them reads no weights.

Only what is *shown* relies on this memory; attaching an expert always reads and checks again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from . import atomic
from .errors import StoreError
from .violations import Violation

__all__ = ["Stamp", "Verdict", "VerdictMemory", "stamps"]

Stamp = tuple[str, int, int, int, int]
"""Name, inode, size, mtime and ctime (ns) of a file; ctime shows an mtime that was set back."""

_UNSETTLED = 100_000_000
"""ns: a file this young could change again within the clock's tick, under an unchanged stamp."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What the checks of a package's own files said: its digest, or what was wrong."""

    digest: str | None = None
    classes: int | None = None
    violations: tuple[Violation, ...] = ()


class _Entry(Struct, frozen=True, kw_only=True):
    stamps: tuple[Stamp, ...]
    verdict: Verdict


class _Memory(Struct, frozen=True, kw_only=True):
    schema: Literal["redhost.verdicts/1"] = "redhost.verdicts/1"
    checks: tuple[Stamp, ...]
    entries: dict[str, _Entry] = {}


class VerdictMemory:
    """Verdicts by folder, valid for as long as the stamp of every file stays the same.

    Those that other checks came to are forgotten: the stamps of the registry's own code tell.

    Args:
        path: Where they are kept, ``HOME/cache/verdicts.json``; an unreadable file is an empty one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checks = _checks()
        self._entries = _load(path, self._checks)
        self._changed = False

    def recall(self, folder: Path, seen: tuple[Stamp, ...]) -> Verdict | None:
        """Return the verdict on a folder whose files still have these stamps."""
        entry = self._entries.get(str(folder))
        return entry.verdict if entry is not None and entry.stamps == seen else None

    def remember(self, folder: Path, seen: tuple[Stamp, ...], verdict: Verdict) -> None:
        """Keep a verdict; ``seen`` must have been taken before the files were read."""
        newest = max((max(stamp[3:]) for stamp in seen), default=0)
        if newest > time.time_ns() - _UNSETTLED:
            return
        self._entries[str(folder)] = _Entry(stamps=seen, verdict=verdict)
        self._changed = True

    def save(self) -> None:
        """Write the memory if it changed; a home that cannot be written only costs time later."""
        if not self._changed:
            return
        kept = {name: entry for name, entry in self._entries.items() if Path(name).is_dir()}
        memory = _Memory(checks=self._checks, entries=kept)
        with suppress(StoreError):
            atomic.write_atomic(self.path, msgspec.json.encode(memory))
            self._changed = False


def stamps(folder: Path, names: Iterable[str]) -> tuple[Stamp, ...]:
    """Return the stamp of each file of a folder (itself: ""); a missing one has zeros."""
    prefix = f"{folder}/"
    return tuple(_stamp(prefix, name) for name in sorted(names))


def _stamp(prefix: str, name: str) -> Stamp:
    try:
        status = os.stat(prefix + name)  # noqa: PTH116  (a thousand of them: a Path takes longer)
    except OSError:
        return (name, 0, 0, 0, 0)
    return (name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _checks() -> tuple[Stamp, ...]:
    folder = Path(__file__).parent
    return stamps(folder, (path.name for path in folder.glob("*.py")))


def _load(path: Path, checks: tuple[Stamp, ...]) -> dict[str, _Entry]:
    try:
        memory = msgspec.json.decode(path.read_bytes(), type=_Memory)
    except (OSError, ValueError):  # whatever is wrong with a memory, forgetting is right
        return {}
    return dict(memory.entries) if memory.checks == checks else {}
