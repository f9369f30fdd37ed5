"""Suggest how a newcomer that was refused for harm could join: other routers, tried in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...registry.errors import RedhostError
from ..receipt import Receipt
from .choose import LARGEST

SMALL = ("ridge", "statistics", "centroid")
"""Kinds that have a closed form and store little."""

LARGE = ("evidence", "quadratic")
"""Kinds with one covariance per column."""


def what_helps(
    expert_id: str, *, columns: int, width: int, compose: Callable[[str], Receipt]
) -> str:
    """Return under which routers an expert would be accepted, after composing with each.

    Args:
        expert_id: The newcomer.
        columns: K of the composition.
        width: D, the width of h.
        compose: Composes with a kind of router and publishes nothing.
    """
    kinds = (*SMALL, *LARGE) if columns * width**2 <= LARGEST else SMALL
    tried = dict(_tried(expert_id, kinds, compose))
    good = {kind: share for kind, share in tried.items() if share is not None}
    if not good:
        return (
            f"Tried --router {', '.join(kinds)}: none lets it in. A card of vectors with sums over "
            "more rows, or rows that are less like the others', may; --accept goes on even so."
        )
    best = sorted(good, key=lambda kind: (-good[kind], kind))
    rights = ", ".join(f"{kind} ({good[kind]:.1%} of gate rows right)" for kind in best)
    return f"Tried: --router {rights} would let it in."


def _tried(
    expert_id: str, kinds: tuple[str, ...], compose: Callable[[str], Receipt]
) -> Iterator[tuple[str, float | None]]:
    """Yield each kind with its accuracy on gate rows; None if the expert would be refused."""
    for kind in kinds:
        try:
            receipt = compose(kind)
        except RedhostError:
            yield kind, None
            continue
        joined = expert_id in receipt.experts
        yield kind, (receipt.accuracy.overall or 0.0) if joined else None
