"""Texts in progress: the encoder's KV cache, the running context, the bus.

Experts that act after the blocks leave the KV cache unchanged, whatever their weights. An adapter
needs a cache of its own: in compositions with adapters the prompt is routed once, and the column
with the largest weight generates alone (`ChosenSession`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.interventions.layout import Inside, intervention_of
from redhost.core.bus.bus import Bus
from redhost.core.bus.experts import InTrunkExpert
from redhost.core.model.composed import ComposedModel
from redhost.registry.errors import UnknownNameError
from redhost_generate.tables import cache_of
from redhost_generate.tokens import RunningContext, Tokens, update_context

__all__ = ["ChosenSession", "DecodingSession", "Session", "routes_once", "session_of"]


class Session(ABC):
    """A text in progress.

    Args:
        model: A composition on a generating backbone.

    Attributes:
        kept: The keys and values of the tokens so far: a KV cache, or a row of a table (`tables`);
            None before the first.
        acts: What acts inside the encoder while it reads this text; None for nothing.
        alpha: α ``(K,)`` of all tokens; empty if each token is routed.
        routed: The states ``(T, D)`` of the prompt if routing has read it; None afterwards.
    """

    acts: Intervention | None = None
    routed: Tensor | None = None

    def __init__(self, model: ComposedModel) -> None:
        self.backbone, self.bus = model.backbone, model.bus
        self.kept: Any = None
        self.alpha = torch.empty(0)

    @property
    def cache(self) -> Any:
        """The KV cache of the tokens so far; None before the first."""
        return cache_of(self)

    @property
    def seen(self) -> int:
        """The number of tokens so far."""
        kept = self.kept
        return (
            kept.tokens if isinstance(kept, Row) else 0 if kept is None else kept.get_seq_length()
        )

    @property
    def trunk(self) -> TextEncoder:
        """The encoder."""
        return self.backbone.trunk

    @property
    @abstractmethod
    def group(self) -> Hashable:
        """What sessions have in common whose rows `answer` takes together."""

    @abstractmethod
    def row(self, states: Tensor) -> Tensor:
        """Return the row ``(1, …)`` on the bus after more states ``(T, D)`` of this text."""

    @abstractmethod
    def answer(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return p ``(B, V)`` of rows ``(B, …)``, and their α ``(B, K)``; empty if not routed."""

    @torch.inference_mode()
    def step(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return p(x_t+1 | x_≤t) ``(V,)`` and α ``(K,)`` after more tokens."""
        [answer] = answers([self], self.row(self.read(ids)))
        return answer

    def read(self, ids: list[int]) -> Tensor:
        """Return the states ``(T, D)`` of more tokens; of a prompt, those it was routed by."""
        if self.routed is not None:
            states, self.routed = self.routed, None
            return states
        trunk, acts = self.trunk, self.acts
        with trunk.lock, nullcontext() if acts is None else acts.apply(trunk):
            tokens = torch.tensor([ids], device=trunk.device)
            states, self.kept = trunk.decode_step(tokens, self.cache)
        return states[0].float().cpu()


def answers(sessions: list[Session], rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return p ``(V,)`` and α ``(K,)`` of each session.

    Args:
        sessions: B sessions of one group.
        rows: Their rows ``(B, …)``.
    """
    p, alpha = sessions[0].answer(rows)
    return [(p[n], alpha[n] if len(alpha) else s.alpha) for n, s in enumerate(sessions)]


class DecodingSession(Session):
    """A text whose every token is routed."""

    def __init__(self, model: ComposedModel) -> None:
        super().__init__(model)
        self.context = RunningContext.empty(self.backbone.width)

    @property
    def group(self) -> Hashable:
        """The bus."""
        return id(self.bus)

    def row(self, states: Tensor) -> Tensor:
        """Return [ h | c ] ``(1, …)`` after more states ``(T, D)``, and move the context on."""
        c = states
        for z in torch.nn.functional.layer_norm(states, states.shape[1:], eps=self.backbone.eps):
            self.context, c = update_context(self.context, z)
        return torch.cat([states[-1], c])[None]

    def answer(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return p ``(B, V)`` and α ``(B, K)`` of rows ``(B, …)``."""
        p, alpha = self.bus(rows)
        return p, alpha


class ChosenSession(Session):
    """A text that one column generates at weight 1: the top one after its prompt, or a given one.

    Args:
        model: A composition on a generating backbone.
        prompt: The tokens of the prompt, including its start.
        expert: The column; None uses the router's choice.

    Raises:
        UnknownNameError: If there is no such column.
    """

    def __init__(
        self, model: ComposedModel, prompt: list[int], *, expert: str | None = None
    ) -> None:
        super().__init__(model)
        self.alpha = self._route(model, prompt) if expert is None else _one(self.bus, expert)
        self.column = int(self.alpha.argmax())
        self.acts = _acts_of(model, self.column)
        if self.acts is not None:  # its keys and values differ
            self.routed = self.kept = None

    @torch.inference_mode()
    def _route(self, model: ComposedModel, prompt: list[int]) -> Tensor:
        """Return α ``(K,)`` after the prompt, whose states and cache are kept."""
        states, unit, backbone = self.read(prompt), Tokens(), model.backbone
        self.routed = states
        row = unit.features(states, unit.layout(backbone.width), eps=backbone.eps)[-1:]
        return model.chooser.weights_of(row)[0]

    @property
    def group(self) -> Hashable:
        """The bus, and the column unless the bus's classifier alone answers."""
        return id(self.bus), None if self._is_classified else self.column

    @property
    def _is_classified(self) -> bool:
        return self.acts is not None and self.bus.classifier is not None

    def row(self, states: Tensor) -> Tensor:
        """Return the last state ``(1, D)``."""
        return states[-1:]

    def answer(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return p ``(B, V)`` of states ``(B, D)``."""
        bus, routed = self.bus, rows.new_empty(0)
        if self._is_classified and bus.classifier is not None:
            return bus.task.head.output(rows @ bus.classifier.T), routed
        wide = bus.layout.pad(rows)
        return bus.alone(wide, bus.norm(wide), self.column), routed


def session_of(model: ComposedModel, prompt: list[int], *, expert: str | None = None) -> Session:
    """Return the session that continues a prompt, which its first step reads.

    Args:
        model: A composition on a generating backbone.
        prompt: The tokens of the prompt, including its start.
        expert: The column that generates alone; None uses the router's weights.

    Raises:
        UnknownNameError: If there is no such column.
    """
    if expert is None and not routes_once(model):
        return DecodingSession(model)
    return ChosenSession(model, prompt, expert=expert)


def routes_once(model: ComposedModel) -> bool:
    """Return whether the prompt is routed once for all tokens, as an adapter has its own cache."""
    return any(segment.own_pass for segment in model.bus.layout.segments)


def _acts_of(model: ComposedModel, column: int) -> Intervention | None:
    """Return what acts inside the encoder for a column: the same object for all texts, if known."""
    bus = model.bus
    if column == len(bus.ids):
        return None
    for segment in bus.layout.segments:
        made = segment.compute
        if bus.ids[column] in segment.readers and isinstance(made, Inside):
            return made.acts
    part = bus.parts()[column]
    return intervention_of(part.step if isinstance(part, InTrunkExpert) else part, model.backbone)


def _one(bus: Bus, expert: str) -> Tensor:
    """Return one-hot weights on a given column."""
    if expert not in bus.columns:
        raise UnknownNameError("expert", expert, bus.columns)
    return torch.tensor([float(c == expert) for c in bus.columns])
