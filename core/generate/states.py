"""The states of a text's tokens: texts → h̃, a row for each token.

A text is computed in a batch of its own, without padding: the bits of its states depend on nothing
else, and only tokens before it touch a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..backbones.trunk import Trunk
from ..layout import Layout
from .context import contexts
from .spelling import spell, start_of

__all__ = ["states", "widen"]


def states(trunk: Trunk, texts: Sequence[str]) -> list[Tensor]:
    """Return h ``(T, D)`` of each text: the states that its tokens are told from."""
    start, told = start_of(trunk), []
    with trunk.guard, torch.inference_mode():
        for text in texts:
            ids = [start, *spell(trunk, text)[:-1]]
            told.append(trunk.hidden(torch.tensor([ids], device=trunk.device))[0].float().cpu())
    return told


def widen(h: Tensor, layout: Layout | None, *, eps: float) -> Tensor:
    """Return h̃ ``(T, …)`` of the states ``(T, D)`` of one text."""
    if layout is None or not layout.chunks:
        return h
    return torch.cat([h, contexts(h, eps=eps)], dim=-1)
