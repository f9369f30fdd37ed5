"""Bits per byte of a prompt's continuation: with an adapter, without, or with a PEFT mixture.

All adapters of the study act in the same top blocks, so the states below are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from redhost_peft.graft import from_states, moved_states, states_below
from torch import Tensor

import redhost
from red_lab.adapters.study import PROMPT, Excerpt
from redhost.core.backbones.interventions import Intervention

__all__ = ["Judge", "Read"]

Read = Callable[[Tensor, Tensor], Tensor]
"""Tokens ``(1, T)``, and the states ``(1, T, D)`` below all adapters → the last states."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Computes the bits of an excerpt's continuation.

    Attributes:
        backbone: The language model.
        acts: Any adapter of the study: all start at the same block.
    """

    backbone: redhost.Backbone
    acts: Intervention
    below: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def bare(self, ids: Tensor, states: Tensor) -> Tensor:
        """Compute the last states without an adapter."""
        with from_states(self.backbone.trunk, states, block=self.acts.lowest - 1):
            return self.backbone.trunk.hidden_states(ids)

    def through(self, acts: Intervention) -> Read:
        """Return a reader with an adapter."""
        trunk = self.backbone.trunk
        return lambda ids, states: moved_states(trunk, ids, acts, states=states)

    def bits(self, excerpt: Excerpt, read: Read) -> float:
        """Return the bits of the tokens after the prompt."""
        ids, head = torch.tensor([excerpt.ids]), self.backbone.classifier
        assert head is not None  # noqa: S101  (it generates text)
        with torch.inference_mode():
            states = read(ids[:, :-1], self.states(excerpt)[:, :-1])
            logits = states[0, PROMPT - 1 :] @ head.T
            nats = torch.nn.functional.cross_entropy(logits, ids[0, PROMPT:], reduction="sum")
        return float(nats) / math.log(2)

    def states(self, excerpt: Excerpt) -> Tensor:
        """Return the states ``(1, T, D)`` below all adapters, cached."""
        if excerpt.ids not in self.below:
            trunk, ids = self.backbone.trunk, torch.tensor([excerpt.ids])
            with torch.inference_mode():
                found = states_below(trunk, ids, self.acts)
            assert found is not None  # noqa: S101  (nobody adapts the first block)
            self.below[excerpt.ids] = found
        return self.below[excerpt.ids]
