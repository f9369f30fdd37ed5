"""What is garbage: generations that no one will go back to, and bytes that only they needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .composition import Composition, digests
from .leases import Lease

__all__ = ["Purged", "find_garbage"]


@dataclass(frozen=True)
class Purged:
    """What was removed, or would be.

    Attributes:
        generations: Numbers, ascending.
        digests: Packages in the store that only they needed.
        bytes: Of both together.
        held: Leases of live processes on generations that would be gone without them.
    """

    generations: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
    bytes: int = 0
    held: tuple[Lease, ...] = ()


def find_garbage(
    kept: Iterable[Composition],
    *,
    generations: Mapping[int, Path],
    stored: Mapping[str, Path],
    held: tuple[Lease, ...] = (),
) -> Purged:
    """Return what can go when some compositions stay.

    Args:
        kept: Those that stay.
        generations: The folder of every generation on disk, by number.
        stored: The folder of every package in the store, by digest.
        held: Leases that some of them stay for.
    """
    kept = tuple(kept)
    numbers = sorted(generations.keys() - {c.number for c in kept})
    unneeded = sorted(stored.keys() - frozenset[str]().union(*map(digests, kept)))
    folders = [*(generations[n] for n in numbers), *(stored[d] for d in unneeded)]
    return Purged(tuple(numbers), tuple(unneeded), sum(map(_size, folders)), held)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
