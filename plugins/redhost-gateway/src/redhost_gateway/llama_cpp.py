"""Which of the adapters that llama.cpp was started with is an expert's: what its file itself says.

`redhost export NAME --to gguf` writes the expert's name with the digest of its package into the
file, as the adapter's task, and llama.cpp's server lists that. So neither a file's name nor its
place makes another's adapter answer. For files without it the operator's word counts:
``--model ID=FILE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from redhost_gateway.adapters import adapter_name
from redhost_gateway.choosing import BACKBONE, Serving
from redhost_gateway.upstream import ListedAdapter, Upstream

__all__ = ["Scale", "scales_for", "scales_of", "why_none"]

SHOWN = 8
"""Most adapters that a message names."""


class Scale(TypedDict):
    """How much one of llama.cpp's adapters counts: 1, or 0 for not at all."""

    id: int
    scale: float


def scales_for(
    adapters: Sequence[ListedAdapter] | None, name: str | None, *, configured: bool = False
) -> list[Scale] | None:
    """Return the scales that select one adapter.

    Args:
        adapters: Those that the upstream lists.
        name: What the adapter's file says that it is, with its digest; None for no adapter.
        configured: Whether the name is the operator's word, for which that of a file is enough.

    Returns:
        A scale for every adapter; None if there is none of that name.
    """
    if adapters is None:
        return None
    names = {a.id: a.name if configured else a.task_name for a in adapters}
    chosen = next((i for i, found in names.items() if found and found == name), None)
    if name is not None and chosen is None:
        return None
    return [{"id": i, "scale": float(i == chosen)} for i in names]


def scales_of(upstream: Upstream, serving: Serving, expert: str) -> list[Scale] | None:
    """Return the scales by which an upstream answers with an expert; None if it lacks it."""
    adapters = upstream.adapters
    if expert == BACKBONE:
        return scales_for(adapters, None)
    if (name := upstream.settings.models.get(expert)) is not None:
        return scales_for(adapters, name, configured=True)
    digest = serving.adapters.get(expert)
    return None if digest is None else scales_for(adapters, adapter_name(expert, digest))


def why_none(upstream: Upstream, serving: Serving, expert: str) -> str:
    """Say what an upstream has instead of an expert, and what to do."""
    digest, configured = serving.adapters.get(expert), upstream.settings.models.get(expert)
    if upstream.adapters is None:
        return "the server lists no adapters at /lora-adapters; is it llama.cpp's?"
    if configured is None and digest is None:
        return "it is no adapter; name a file of llama.cpp's with --model ID=NAME"
    name = configured or adapter_name(expert, str(digest))
    found = ", ".join(a.name for a in upstream.adapters[:SHOWN]) or "none"
    hint = f"start llama.cpp with --lora and what 'redhost export {expert} --to gguf' writes"
    return f"expected the adapter {name}, found {found}; {hint}"
