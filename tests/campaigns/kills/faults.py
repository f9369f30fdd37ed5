"""Inject faults other than kills: full disk, no write access, flipped bits, broken packages."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from itertools import count as steps_from
from pathlib import Path
from random import Random
from typing import Any

from red_lab.progress import Bar

from kills.home import Watched
from kills.newcomers import changed_plugins, loud_newcomers, second_backbone, wrecks
from kills.run import outcome, require, summary, unexpected, watch
from redhost.testing import fail_at
from redhost.testing.fault_injection import Kill

__all__ = [
    "fault_at_every_step",
    "fault_campaign",
    "flipped_caches",
    "flipped_current",
]


def fault_campaign(folder: Path, *, count: int, seed: int, backbone: str) -> dict[str, Any]:
    """Inject all faults other than kills; return the section ``faults`` of the metrics.

    Args:
        folder: An empty folder.
        count: Minimum number of faults. Every step and every bit of ``current`` are always tested;
            the remaining faults are bits of caches.
        seed: Random seed of the bits.
        backbone: The backbone's id.
    """
    bar, done = Bar("faults", total=count), 0
    parts: dict[str, Any] = {}

    def note(name: str, make: Callable[[Watched], Iterator[Kill]]) -> None:
        nonlocal done
        home = Watched(folder / name, backbone)
        home.prepare()
        found = watch(make(home), bar, done)
        done += len(found)
        parts[name] = summary(found, home.published)

    note("full", lambda home: fault_at_every_step(home, code=errno.ENOSPC))
    note("read_only", lambda home: fault_at_every_step(home, code=errno.EROFS))
    note("current", flipped_current)
    note("loud", lambda home: loud_newcomers(home, folder / "packages"))
    note("wrecks", lambda home: wrecks(home, folder / "sites"))
    note("namesake", lambda home: second_backbone(home, folder / "second"))
    note("byte_code", lambda _: changed_plugins(folder / "plugins"))
    left = max(1, count - done)
    note("caches", lambda home: flipped_caches(home, count=left, seed=seed))
    bad = sum(len(part["bad"]) for part in parts.values())
    return {**parts, "kills": done, "bad": bad, "seed": seed}


def fault_at_every_step(home: Watched, *, code: int) -> Iterator[Kill]:
    """Let a recompose fail at each of its writes, one write per run.

    Args:
        home: The home.
        code: The error, as in `errno`.

    Yields:
        Each fault; it may end with an error of redhost, but no other error.
    """
    for step in steps_from(1):
        with fail_at(at=step, code=code) as calls:
            problem = unexpected(home.publish)
        problem = problem or home.check()
        if len(calls) < step:
            break  # there are no more steps
        yield Kill(f"step {step}, {calls[step - 1]}", problem)


def flipped_current(home: Watched) -> Iterator[Kill]:
    """Flip each bit of ``current``; it must be refused, or the same generation must be loaded.

    Args:
        home: The home.
    """
    while home.before % 2 == 0:  # of an odd number one bit makes that of the generation before
        home.publish()
        home.check()
    path = home.path / "current"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        path.write_bytes(_flipped(data, bit))
        yield Kill(f"bit {bit}", unexpected(lambda: require(home.loaded(), home.before)))
        path.write_bytes(data)


def flipped_caches(home: Watched, *, count: int, seed: int) -> Iterator[Kill]:
    """Flip a bit of the caches before each recompose; the router must stay the same.

    Args:
        home: The home.
        count: Number of faults.
        seed: Random seed of the bits.
    """
    right, random = outcome(home.publish()), Random(seed)
    home.check()
    for _ in range(count):
        files = [p for p in sorted(home.path.glob("cache/**/*")) if p.is_file()]
        place = random.randrange(8 * sum(p.stat().st_size for p in files))
        path, bit = _find(files, place)
        path.write_bytes(_flipped(path.read_bytes(), bit))
        problem = unexpected(lambda: require(outcome(home.publish()), right))
        yield Kill(f"bit {bit} of {path.name}", problem or home.check())


def _flipped(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _find(files: Sequence[Path], place: int) -> tuple[Path, int]:
    """Return the file that holds the n-th bit of all files, and the bit's index in it."""
    for path in files:
        bits = 8 * path.stat().st_size
        if place < bits:
            return path, place
        place -= bits
    raise IndexError(place)
