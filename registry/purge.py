"""Drop the stored copies of an expert that was removed."""

from __future__ import annotations

from dataclasses import dataclass

from .composition import digests
from .generations import Generations

__all__ = ["Dropped", "drop_copies"]


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What `drop_copies` removed.

    Attributes:
        digests: Of the copies.
        generations: Those that cannot be rolled back to any more.
    """

    digests: tuple[str, ...] = ()
    generations: tuple[int, ...] = ()


def drop_copies(generations: Generations, expert_id: str) -> Dropped:
    """Remove every stored copy of an expert, but for what the current generation needs.

    Args:
        generations: The generations of a home.
        expert_id: The id under which it was composed.
    """
    with generations.writer():
        history, current = generations.history(), generations.current()
        copies = {m.digest for c in history for m in c.experts if m.id == expert_id}
        needed = next((digests(c) for c in history if c.number == current), frozenset[str]())
        gone = (copies - needed) & generations.store.digests()
        generations.store.purge(gone)
        lost = tuple(c.number for c in history if digests(c) & gone)
    return Dropped(digests=tuple(sorted(gone)), generations=lost)
