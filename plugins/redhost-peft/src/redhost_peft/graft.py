"""Grafts: add to the hidden states at a block a function of those at the same or a lower block.

    h' = pool(blocks above w of (H_w + S)),   G = h' − h

S is computed for every token from H_b, b ≤ w. With S = 0 both passes are bitwise identical and G
is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from redhost.core.backbones.encoder import TextEncoder, blocks_of
from redhost.core.backbones.interventions import Intervention, hooked, states_with
from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.experts import Expert

from .tap import Step, Tap, states_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Graft:
    """step(H_read), added to H_write.

    Attributes:
        read: The block whose states the step reads.
        write: The block whose states it is added to, `read` or a later one.
        step: States ``(B, T, D)`` → the summand ``(B, T, D)``.
    """

    read: int
    write: int
    step: Step
    changes_h: bool = field(default=True, init=False)
    rowwise: bool = field(default=False, init=False)
    key: str = field(default="", init=False)

    @property
    def lowest(self) -> int:
        """The block above the one it reads, whose own computation is unchanged."""
        return self.read + 1

    def apply(self, encoder: TextEncoder) -> AbstractContextManager[None]:
        """Add the step's output in every pass."""
        blocks, seen = blocks_of(encoder.model)[1], {}

        def note(_: nn.Module, _inputs: object, output: object) -> None:
            seen["states"] = states_of(output)

        def add(_: nn.Module, _inputs: object, output: object) -> object:
            states = states_of(output)
            moved = states + self.step(seen["states"]).to(states)
            return (moved, *output[1:]) if isinstance(output, tuple) else moved

        # Hooks of one module run in order of registration: a step may read the block it writes to.
        return hooked(encoder, (blocks[self.read], note), (blocks[self.write], add))


def token_step(expert: Expert, *, width: int, eps: float) -> Step:
    """Return S: states ``(B, T, D)`` → Δ(LayerNorm(states)), token by token."""
    norm = LayerNorm(width=width, eps=eps)

    def step(states: Tensor) -> Tensor:
        flat: Tensor = expert(norm(states.flatten(0, 1)))
        return flat.reshape(*states.shape[:-1], -1)

    return step


def moved_by(
    encoder: TextEncoder, ids: Tensor, intervention: Intervention, *, states: Tensor | None = None
) -> Tensor:
    """Return h' ``(B, D)`` of token ids ``(B, T)``: h under an intervention.

    Blocks below the lowest affected one run without it; gradients reach its weights.

    Args:
        encoder: The frozen encoder.
        ids: The tokens.
        intervention: An intervention that changes h.
        states: The result of `states_below`, if already computed.
    """
    return encoder.pool(moved_states(encoder, ids, intervention, states=states))


def moved_states(
    encoder: TextEncoder, ids: Tensor, intervention: Intervention, *, states: Tensor | None = None
) -> Tensor:
    """Return the states ``(B, T, D)`` that `moved_by` pools."""
    states = states_below(encoder, ids, intervention) if states is None else states
    with from_states(encoder, states, block=block_below(encoder, intervention)):
        return states_with(encoder, ids, intervention)


def states_below(encoder: TextEncoder, ids: Tensor, intervention: Intervention) -> Tensor | None:
    """Return the states ``(B, T, D)`` from which `moved_by` starts; None to start at block 0."""
    below = block_below(encoder, intervention)
    return states_with(encoder, ids, Tap(block=below)) if below >= 0 else None


def block_below(encoder: TextEncoder, intervention: Intervention) -> int:
    """Return the block above which an intervention's pass starts.

    It is low enough that the pass computes every layer of states that is part of h.
    """
    below, layers = intervention.lowest - 1, encoder.features.layers if encoder.features else ()
    # Layer n of the states is what block n − 1 returns, layer 0 the embeddings. Twice `below`, as
    # `min` of a single number is an error.
    return min(below, *(n - 1 for n in layers if n), below)


@contextmanager
def from_states(encoder: TextEncoder, states: Tensor | None, *, block: int) -> Iterator[None]:
    """Start every pass of a ``with`` block above a block whose states ``(B, T, D)`` are known.

    This block and those below it compute nothing and return `states`. With block −1 every block
    is run.
    """
    below = list(encoder.blocks)[: block + 1]

    def known(*_: object, **__: object) -> object:
        return states

    with encoder.lock:
        try:
            for module in below:
                module.forward = known
            yield
        finally:
            for module in below:
                del module.forward  # restores the method of the class
