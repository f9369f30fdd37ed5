"""Texts in progress: the encoder's KV cache, the running context, the bus.

Experts that act after the blocks leave the KV cache unchanged, whatever their weights. An adapter
needs a cache of its own: in compositions with adapters the prompt is routed once, and the column
with the largest weight generates alone (`ChosenSession`). A prompt is read in parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.interventions.layout import Inside, intervention_of
from redhost.core.backbones.tiles import PASS_TOKENS, tiled
from redhost.core.bus.bus import Bus
from redhost.core.bus.experts import InTrunkExpert
from redhost.core.model.composed import ComposedModel
from redhost.registry.errors import UnknownNameError
from redhost_generate.lower import LowerBlocks
from redhost_generate.tables import cache_of
from redhost_generate.tokens import RunningContext, Tokens, update_context

__all__ = ["ChosenSession", "DecodingSession", "Session", "routes_once", "session_of"]


class Session(ABC):
    """A text in progress.

    Args:
        model: A composition on a generating backbone.

    Attributes:
        unread: The tokens that are to be read before the next answer.
        past: The keys and values of the tokens so far: a KV cache, or a row of a table (`tables`);
            None before the first.
        acts: What acts inside the encoder while it reads this text; None for nothing.
        alpha: α ``(K,)`` of all tokens; empty if each token is routed.
        shares: Whether its passes may be shared with other texts.
    """

    acts: Intervention | None = None
    shares: bool = True

    def __init__(self, model: ComposedModel) -> None:
        self.backbone, self.bus = model.backbone, model.bus
        self.unread = list[int]()
        self.past: Any = None
        self.alpha = torch.empty(0)

    @property
    def part(self) -> list[int]:
        """The tokens of its next pass: a long prompt is read in parts, between other texts'."""
        return self.unread[:PASS_TOKENS]

    @property
    def cache(self) -> Any:
        """The KV cache of the tokens so far; None before the first."""
        return cache_of(self)

    @property
    def seen(self) -> int:
        """The number of tokens so far."""
        return 0 if self.past is None else int(self.past.get_seq_length())

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
    def step(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return p(x_t+1 | x_≤t) ``(V,)`` and α ``(K,)`` after more tokens."""
        self.unread, row = [*self.unread, *ids], None
        while row is None:
            row = self.take(self.read())
        [answer] = answers([self], row)
        return answer

    def read(self) -> Tensor:
        """Return the states ``(T, D)`` of its next part, read alone."""
        trunk, acts = self.trunk, self.acts
        with trunk.lock, nullcontext() if acts is None else acts.apply(trunk):
            tokens = torch.tensor([self.part], device=trunk.device)
            states, self.past = trunk.decode_step(tokens, self.cache)
        return states[0].float().cpu()

    def take(self, states: Tensor) -> Tensor | None:
        """Note that a part is read; return the row after its last token, None if more is unread.

        Args:
            states: The part's states ``(T, D)``.
        """
        self.unread = self.unread[len(states) :]
        row = self.row(states)
        return None if self.unread else row


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
        expert: The column; None uses the router's choice.

    Attributes:
        column: The column; -1 until the prompt is routed.
        lower: What the blocks below the column have computed of the prompt; None for nothing.

    Raises:
        UnknownNameError: If there is no such column.
    """

    def __init__(self, model: ComposedModel, *, expert: str | None = None) -> None:
        super().__init__(model)
        self.model, self.column, self.shares = model, -1, expert is not None
        self.lower: LowerBlocks | None = None
        self._prompt, self._states = list[int](), list[Tensor]()
        if expert is not None:
            self._choose(_one(self.bus, expert))
            return
        acts = [_acts_of(model, k) for k in range(len(self.bus.columns))]
        self.lower = LowerBlocks(self.trunk, {a.lowest for a in acts if a is not None})

    def _choose(self, alpha: Tensor) -> None:
        self.alpha, self.column = alpha, int(alpha.argmax())
        self.acts = _acts_of(self.model, self.column)

    def read(self) -> Tensor:
        """Return the states ``(T, D)`` of its next part, from where they are not known yet."""
        if self.lower is None:
            return super().read()
        if self.column < 0:
            with self.trunk.lock, self.lower.noted():
                return super().read()
        start, stop = self.seen, self.seen + len(self.part)
        with self.trunk.lock, self.lower.skipped(start, stop):
            states = super().read()
        self.lower.complete(self.past, start, stop)
        return states

    def take(self, states: Tensor) -> Tensor | None:
        """Note that a part is read; after the prompt choose the column, and read it again with it.

        Args:
            states: The part's states ``(T, D)``.
        """
        part, row = self.part, super().take(states)
        if self.column < 0:
            self._prompt += part
            self._states.append(states)
            return None if row is None else self._route(row)
        if row is not None:
            self.lower, self.shares = None, True
        return row

    def _route(self, row: Tensor) -> Tensor | None:
        """Choose the column; return the row if the prompt is read as the column reads it."""
        unit, backbone = Tokens(), self.model.backbone
        states, layout = torch.cat(self._states), unit.layout(backbone.width)
        last = unit.features(states, layout, eps=backbone.eps)[-1:]
        self._choose(self.model.chooser.weights_of(last)[0])
        lower, self.lower, self._states = self.lower, None, []
        if self.acts is None:
            self.shares = True
            return row
        if lower is not None and lower.chosen(self.acts.lowest, self.past):
            self.lower = lower
        self.unread, self.past, self.shares = self._prompt, None, self.lower is None
        return None

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
            return bus.task.head.output(tiled(rows, len(rows), bus.classifier, None)), routed
        wide = bus.layout.pad(rows)
        return bus.alone(wide, bus.norm(wide), self.column), routed


def session_of(model: ComposedModel, *, expert: str | None = None) -> Session:
    """Return the session of a text, of which nothing is read yet.

    Args:
        model: A composition on a generating backbone.
        expert: The column that generates alone; None uses the router's weights.

    Raises:
        UnknownNameError: If there is no such column.
    """
    if expert is None and not routes_once(model):
        return DecodingSession(model)
    return ChosenSession(model, expert=expert)


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
