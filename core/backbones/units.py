"""How texts become rows of the bus if a row is not a whole text but a word or a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..bus.layout import FeatureLayout
from ..bus.tasks import Unit
from ..types import Row
from .encoder import TextEncoder
from .tokens import context_layout, rows_per_token, token_states, with_contexts
from .words import rows_per_word, text_layout, with_text, word_states


@dataclass(frozen=True, kw_only=True)
class TextRows:
    """How texts become rows.

    Attributes:
        rows: Labelled texts → labelled rows.
        states: Texts → the states ``(T, D)`` of each text from which its rows are made.
        features: States of a text, layout and ε → its rows h̃ ``(R, …)``; h without a layout.
        layout: D → the layout of h̃, whose one segment the router reads.
    """

    rows: Callable[[TextEncoder, Sequence[Row]], list[Row]]
    states: Callable[[TextEncoder, Sequence[str]], list[Tensor]]
    features: Callable[[Tensor, FeatureLayout | None, float], Tensor]
    layout: Callable[[int], FeatureLayout]


UNITS: Mapping[Unit, TextRows] = {
    Unit.WORD: TextRows(
        rows=rows_per_word,
        states=word_states,
        features=lambda states, layout, _: with_text(states, layout),
        layout=text_layout,
    ),
    Unit.TOKEN: TextRows(
        rows=rows_per_token,
        states=token_states,
        features=lambda states, layout, eps: with_contexts(states, layout, eps=eps),
        layout=context_layout,
    ),
}
"""The conversion for each unit; a whole text is one row and needs none."""
