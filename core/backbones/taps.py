"""Inside the trunk: hidden states at a block, and what a step added at a block does to h.

    r = pool(H_b)                              a tap: what an expert reads at block b
    G = pool(blocks above w of (H_w + S)) − h  a graft: what a step S written at block w adds to h

S is computed for every token from H_b, b ≤ w. With S = 0 both passes are the same, bit for bit,
and G is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...registry.errors import ContractError, suggest
from .trunk import Trunk, blocks_of

__all__ = [
    "FINAL",
    "Step",
    "added_by",
    "block_at",
    "from_states",
    "grafted",
    "states_at",
    "tapped",
    "with_step",
]

FINAL = "final"
"""The tap at the end: h itself."""

Step = Callable[[Tensor], Tensor]


class _Reached(Exception):  # noqa: N818  (a signal, not an error)
    """The block was reached; nothing above it is needed."""


def block_at(trunk: Trunk, tap: str) -> int:
    """Return the number of the block a tap names: ``2``, or a module's name such as ``layers.2``.

    Raises:
        ContractError: If the trunk has no such block; the message lists what there is.
    """
    path, blocks = blocks_of(trunk.model)
    names = {f"{path}.{n}": n for n in range(len(blocks))}
    names |= {str(n): n for n in range(len(blocks))}
    if tap not in names:
        raise ContractError(
            f"the backbone has no layer {tap!r}",
            expected=f"0 … {len(blocks) - 1}, or {path}.0 … {path}.{len(blocks) - 1}",
            found=tap,
            hint=suggest(tap, names),
        )
    return names[tap]


def tapped(trunk: Trunk, texts: Sequence[str], *, block: int) -> Tensor:
    """Return r = pool(H_b) ``(N, D)``; no block above b is run."""
    rows: list[Tensor] = []
    index: list[int] = []
    with trunk.guard, torch.inference_mode():
        for place, ids in trunk.batches(texts):
            rows.append(trunk.pool(states_at(trunk, ids, block=block))[: len(place)].float().cpu())
            index += place
    out = torch.empty(len(texts), trunk.width)
    if rows:
        out[index] = torch.cat(rows)
    return out


def grafted(trunk: Trunk, texts: Sequence[str], *, read: int, write: int, step: Step) -> Tensor:
    """Return G ``(N, D)``, what a step at block `write` adds to h.

    Args:
        trunk: The frozen encoder.
        texts: N of them.
        read: The block whose states the step reads.
        write: The block whose states it is added to, `read` or a later one.
        step: States ``(B, T, D)`` → what is added, ``(B, T, D)``.
    """
    out = torch.empty(len(texts), trunk.width)
    with trunk.guard, torch.inference_mode():
        for place, ids in trunk.batches(texts):
            states = states_at(trunk, ids, block=read)
            added = added_by(trunk, ids, states, read=read, write=write, step=step)
            out[place] = added[: len(place)].float().cpu()
    return out


def added_by(
    trunk: Trunk, ids: Tensor, states: Tensor, *, read: int, write: int, step: Step
) -> Tensor:
    """Return G ``(B, D)`` for token ids ``(B, T)`` whose states at `read` are known.

    Only the blocks above `read` are run, once without the step and once with it; gradients reach
    the step's weights.
    """
    with from_states(trunk, states, block=read):
        with torch.no_grad():
            plain = trunk.pool(trunk.hidden(ids))
        with with_step(trunk, read=read, write=write, step=step):
            moved: Tensor = trunk.pool(trunk.hidden(ids))
    return moved - plain


def states_at(trunk: Trunk, ids: Tensor, *, block: int) -> Tensor:
    """Return H_b ``(B, T, D)`` of token ids ``(B, T)``."""
    found: list[Tensor] = []

    def stop(_: nn.Module, _inputs: object, output: object) -> None:
        found.append(_states(output))
        raise _Reached

    hook = blocks_of(trunk.model)[1][block].register_forward_hook(stop)
    try:
        trunk.hidden(ids)
    except _Reached:
        pass
    finally:
        hook.remove()
    return found[0]


@contextmanager
def from_states(trunk: Trunk, states: Tensor, *, block: int) -> Iterator[None]:
    """Let every pass of a ``with`` block start above a block of known states ``(B, T, D)``.

    The blocks below compute nothing and hand on what they got; the block itself gives `states`.
    """
    below = list(blocks_of(trunk.model)[1])[: block + 1]

    def known(*_: object, **__: object) -> object:
        return states

    try:
        for module in below:
            module.forward = known
        yield
    finally:
        for module in below:
            del module.forward  # the class's own shows again


@contextmanager
def with_step(trunk: Trunk, *, read: int, write: int, step: Step) -> Iterator[None]:
    """Add step(H_read) to H_write in every pass of a ``with`` block; the trunk stays as it is."""
    blocks, seen = blocks_of(trunk.model)[1], {}

    def note(_: nn.Module, _inputs: object, output: object) -> None:
        seen["states"] = _states(output)

    def add(_: nn.Module, _inputs: object, output: object) -> object:
        states = _states(output)
        moved = states + step(seen["states"]).to(states)
        return moved if isinstance(output, Tensor) else (moved, *_rest(output))

    hooks = [blocks[read].register_forward_hook(note)]
    try:
        hooks.append(blocks[write].register_forward_hook(add))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _states(output: object) -> Tensor:
    """Return the hidden states a block gives: alone, or first of a tuple."""
    first = output[0] if isinstance(output, tuple) else output
    if not isinstance(first, Tensor):
        raise TypeError(f"a block gives {type(output).__name__}, expected hidden states")
    return first


def _rest(output: object) -> tuple[object, ...]:
    return output[1:] if isinstance(output, tuple) else ()
