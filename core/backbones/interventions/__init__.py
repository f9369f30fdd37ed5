"""Interventions: modules that read or change states inside the encoder's blocks during a pass.

An `Intervention` is active within a ``with`` block. An expert of a plugin's form defines its own
(`InTrunk`); redhost-peft has those that read states at a block, add to them, or adapt its layers.
The bus uses the result as follows (`interventions.layout`):

    r  = pool(states where it stops)   if the intervention only reads
    h' = pool(states with it)          if the intervention changes h
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from ..backbone import Backbone
from ..encoder import TextEncoder

Hook = Callable[[nn.Module, Any, Any], object]
"""Module, its inputs, its output → the replaced output; None leaves the output unchanged."""


@runtime_checkable
class Intervention(Protocol):
    """Something that acts inside the blocks of an encoder."""

    @property
    def lowest(self) -> int:
        """The lowest affected block: blocks below compute the same without it, and are run once."""
        ...

    @property
    def changes_h(self) -> bool:
        """Whether it changes h; an intervention that only reads ends the pass there."""
        ...

    @property
    def rowwise(self) -> bool:
        """Whether it changes each token's row independently, so that no other row affects its bits.

        Texts then share its pass. If it also changes h, text can be generated with it, and a host
        chooses a router under which it runs only for texts on which it has weight. A matrix
        product is independent by row if its layer is registered (`TextEncoder.with_linears`).
        """
        ...

    @property
    def key(self) -> str:
        """Key of its rows in the feature cache if all experts share them, else ''."""
        ...

    def apply(self, encoder: TextEncoder) -> AbstractContextManager[None]:
        """Act in every pass of a ``with`` block, then restore the encoder (`hooked`)."""
        ...


class SharedPasses(Protocol):
    """How texts with different interventions of one kind continue in the same passes.

    The result for a text is bitwise identical to that of a separate pass. Two are equal if their
    interventions can share passes.
    """

    def begin(
        self, texts: Sequence[str], acts: Collection[Intervention]
    ) -> tuple[Tensor, Sequence[Any]]:
        """Return h ``(N, D)``, and for each text what `go_on` needs of this pass."""
        ...

    def go_on(
        self, texts: Sequence[str], acts: Sequence[Intervention], begun: Sequence[Any]
    ) -> Tensor:
        """Return h' ``(N, D)`` of texts, each with an intervention of its own."""
        ...


@runtime_checkable
class SharesPasses(Protocol):
    """An intervention, changing h by rows, whose texts can share passes with those of others."""

    def shared_passes(self, encoder: TextEncoder) -> SharedPasses | None:
        """Return how they do; None if this encoder computes each text by itself."""
        ...


@runtime_checkable
class InTrunk(Protocol):
    """An expert that defines its own intervention inside the blocks.

    If the intervention changes h, the expert's output on the bus is h' − h where it writes hidden
    states, else Δ of the normalised h'. If it only reads, the output is Δ of the normalised r.
    """

    def intervention(self, backbone: Backbone) -> Intervention:
        """Return the intervention for a backbone.

        Raises:
            ContractError: If the backbone lacks the modules it acts on.
        """
        ...


class PassEnded(Exception):  # noqa: N818  (a signal, not an error)
    """Raised by a hook to end the pass with the given states ``(B, T, D)``."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


@contextmanager
def hooked(encoder: TextEncoder, *hooks: tuple[nn.Module, Hook]) -> Iterator[None]:
    """Register forward hooks for every pass of a ``with`` block.

    The encoder is locked meanwhile: hooks are attached to the modules themselves and would also run
    in the passes of other threads.
    """
    with encoder.lock, ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def states_with(encoder: TextEncoder, ids: Tensor, intervention: Intervention) -> Tensor:
    """Return the final states ``(B, T, D)`` of a pass of token ids ``(B, T)``."""
    with intervention.apply(encoder):
        try:
            return encoder.hidden_states(ids)
        except PassEnded as end:
            return end.states
