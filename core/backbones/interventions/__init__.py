"""What acts inside the encoder's blocks while a pass runs.

An `Intervention` holds for the length of a ``with`` block. A tap reads hidden states
(`interventions.tap`), a graft adds to them (`interventions.graft`), an adapter changes what linear
layers compute (`interventions.lora`); an expert of a plugin's form brings another by saying how it
acts (`InTrunk`). What the bus makes of it is in `interventions.layout`:

    r  = pool(states at its end)   of one that only reads
    h' = pool(states with it)      of one that changes h
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from ..backbone import Backbone
from ..encoder import TextEncoder

Hook = Callable[[nn.Module, Any, Any], object]
"""Module, its inputs, its output → the output to go on with; None leaves it as it is."""


@runtime_checkable
class Intervention(Protocol):
    """Something that acts inside the blocks of an encoder."""

    @property
    def lowest(self) -> int:
        """Blocks below this one compute the same with it as without it, and are run once."""
        ...

    @property
    def changes_h(self) -> bool:
        """Whether it changes h. One that only reads ends the pass with what it read."""
        ...

    @property
    def rowwise(self) -> bool:
        """Whether it changes one token's row at a time, in bits that no other row decides.

        Then texts share its pass; and if it changes h, text may be generated with it, and a host
        chooses a router that runs it where it has a weight and nowhere else. A product with a
        matrix is so where the encoder has its layer (`TextEncoder.with_linears`).
        """
        ...

    @property
    def key(self) -> str:
        """Names its rows in the feature cache where they are the same for every expert, else ''."""
        ...

    def apply(self, encoder: TextEncoder) -> AbstractContextManager[None]:
        """Act in every pass of a ``with`` block, and leave the encoder as it was (`hooked`)."""
        ...


@runtime_checkable
class InTrunk(Protocol):
    """An expert that says itself how it acts inside the blocks.

    On the bus it is what its intervention gives: where that changes h, h' − h if the expert writes
    hidden states, else Δ of the normalised h'; otherwise Δ of the normalised r.
    """

    def intervention(self, backbone: Backbone) -> Intervention:
        """Return how it acts inside a backbone.

        Raises:
            ContractError: If this backbone has not what it acts on.
        """
        ...


class PassEnded(Exception):  # noqa: N818  (a signal, not an error)
    """Raised by a hook that needs nothing above it; its states ``(B, T, D)`` end the pass."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


@contextmanager
def hooked(encoder: TextEncoder, *hooks: tuple[nn.Module, Hook]) -> Iterator[None]:
    """Let hooks see and change what modules give, in every pass of a ``with`` block.

    The encoder is locked meanwhile: hooks sit on the modules themselves, where a pass of another
    thread would meet them.
    """
    with encoder.lock, ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def states_with(encoder: TextEncoder, ids: Tensor, intervention: Intervention) -> Tensor:
    """Return the states ``(B, T, D)`` that a pass of token ids ``(B, T)`` ends with."""
    with intervention.apply(encoder):
        try:
            return encoder.hidden_states(ids)
        except PassEnded as end:
            return end.states
