"""Read the hidden states H_b at a block; no block above it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from torch import Tensor, nn

from redhost.core.backbones.encoder import TextEncoder, blocks_of
from redhost.core.backbones.interventions import Intervention, PassEnded, hooked
from redhost.core.backbones.interventions.layout import Inside
from redhost.registry.errors import ContractError, suggest

Step = Callable[[Tensor], Tensor]
"""States ``(B, T, D)`` → the summand that is added to states."""


def block_at(trunk: TextEncoder, tap: str) -> int:
    """Return the number of a tap's block; it is named by number (``2``) or module (``layers.2``).

    Raises:
        ContractError: If the trunk has no such block; the message lists the valid names.
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


@dataclass(frozen=True, kw_only=True)
class Tap:
    """An intervention that returns the states at a block in place of the last ones."""

    block: int
    changes_h: bool = field(default=False, init=False)
    rowwise: bool = field(default=False, init=False)

    @property
    def lowest(self) -> int:
        """The block above the tapped one."""
        return self.block + 1

    @property
    def key(self) -> str:
        """The block's cache key, shared by all experts that read the block."""
        return f"block {self.block}"

    def apply(self, encoder: TextEncoder) -> AbstractContextManager[None]:
        """End every pass at the block."""

        def stop(_: nn.Module, _inputs: object, output: object) -> None:
            raise PassEnded(states_of(output))

        return hooked(encoder, (blocks_of(encoder.model)[1][self.block], stop))


def compute_features(
    intervention: Intervention, encoder: TextEncoder, texts: Sequence[str]
) -> Tensor:
    """Return r, if an intervention only reads, or h', if it changes h, for texts ``(N, D)``."""
    return Inside(acts=intervention, encoder=encoder)(texts)


def states_of(output: object) -> Tensor:
    """Return the hidden states of a block's output: the output itself, or the first of a tuple."""
    first = output[0] if isinstance(output, tuple) else output
    if not isinstance(first, Tensor):
        raise TypeError(f"a block gives {type(output).__name__}, expected hidden states")
    return first
