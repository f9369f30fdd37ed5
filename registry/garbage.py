"""Collect garbage: generations that no one will go back to, and the bytes that only they needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import atomic
from .composition import Composition, digests
from .leases import Lease

if TYPE_CHECKING:
    from .generations import Generations

__all__ = ["Purged", "collect"]


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


def collect(generations: Generations, keep: int, *, dry_run: bool, timeout: float) -> Purged:
    """Do what `Generations.gc` says.

    Publishers are kept out by the writer's lock and new holders by the gate, so that what is
    found unneeded stays so until it is gone. Generations go first: whatever is interrupted, every
    generation that is left still has its bytes.
    """
    if not generations.home.is_dir():
        return Purged()
    leases = generations.leases
    with generations.writer(timeout=timeout), leases.gate():
        leases.sweep()
        young = {c.number: c for c in generations.ancestry(max(1, keep))}
        held = tuple(x for x in leases.live() if x.generation not in young)
        kept = young | {x.generation: generations.load(x.generation) for x in held}
        purged = _unneeded(generations, kept.values(), held)
        if not dry_run:
            generations.remember_highest()
            for number in purged.generations:
                atomic.discard(generations.folder / str(number))
            generations.store.purge(purged.digests)
    return purged


def _unneeded(
    generations: Generations, kept: Iterable[Composition], held: tuple[Lease, ...]
) -> Purged:
    """Return what can go when these compositions stay."""
    kept = tuple(kept)
    store = generations.store
    dropped = sorted(set(generations.numbers()) - {c.number for c in kept})
    unneeded = sorted(store.digests() - frozenset[str]().union(*map(digests, kept)))
    folders = [generations.folder / str(n) for n in dropped]
    folders += [store.folder / digest for digest in unneeded]
    return Purged(tuple(dropped), tuple(unneeded), sum(map(_size, folders)), held)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
