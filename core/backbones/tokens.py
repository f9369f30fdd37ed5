"""A text as the bus of a generating backbone sees it: a row for each token.

    row t      h_t, the state after [start, x_1 … x_t-1], and c_t, its running context
    its answer x_t, by number

The tokenizer's start token stands before every text, so that its first token is predicted as well.
The running context is what the router reads beside z, for each horizon a mean of the bus vectors so
far in which older ones count less:

    m_t = β m_t-1 + z_t    w_t = β w_t-1 + 1    c_t = m_t / w_t    β = 1 − 1/horizon

Legend: T tokens, D width, S horizons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ..bus.layout import ROUTER, FeatureLayout, FeatureSegment
from ..types import Row
from .encoder import TextEncoder

HORIZONS = (8, 64)
"""In tokens; other lengths were not tried."""


def start_of(trunk: TextEncoder) -> int:
    """Return the token that stands before every text.

    Raises:
        UsageError: If the tokenizer has neither a token for the start of a text nor one for its
            end.
    """
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(trunk.tokenizer, name, None)
        if token is not None:
            return int(token)
    raise UsageError(
        "the tokenizer has no token to start a text with",
        expected="a bos_token or an eos_token",
        found="neither",
        hint="Name one in the model's tokenizer_config.json, or choose another model.",
    )


def tokenize(trunk: TextEncoder, text: str, *, whole: bool = False) -> list[int]:
    """Return the numbers of a text's tokens, without the start.

    Args:
        trunk: Whose tokens.
        text: Not empty.
        whole: Whether a text that is longer than the trunk reads is left so, not cut there.

    Raises:
        UsageError: If it has none.
    """
    with trunk.lock:
        ids = list(trunk.tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise UsageError("a text has no tokens", expected="at least one", found=repr(text))
    return ids if whole else ids[: trunk.longest]


def rows_per_token(trunk: TextEncoder, rows: Sequence[Row]) -> list[Row]:
    """Return a row for each token of texts: its number is the label, the domain is the text's."""
    return [
        Row(text="", label=str(token), domain=row.domain)
        for row in rows
        for token in tokenize(trunk, row.text)
    ]


def byte_counts(trunk: TextEncoder, texts: Sequence[str]) -> list[int]:
    """Return how many bytes of UTF-8 the tokens of each text stand for."""
    counts = []
    for text in texts:
        ids = tokenize(trunk, text)
        # Only of a text that may be cut: decoding need not give back the very text.
        read = str(trunk.tokenizer.decode(ids)) if len(ids) == trunk.longest else text
        counts.append(len(read.encode()))
    return counts


def token_states(
    trunk: TextEncoder, texts: Sequence[str], *, compute: Callable[[Tensor], Tensor] | None = None
) -> list[Tensor]:
    """Return h ``(T, D)`` of each text: the states that its tokens are predicted from.

    Args:
        trunk: The encoder.
        texts: Any texts.
        compute: Token ids ``(1, T)`` → states ``(1, T, D)``, where others than h are wanted.
    """
    compute = compute or trunk.hidden_states
    start, states = start_of(trunk), []
    with trunk.lock, torch.inference_mode():
        for text in texts:
            ids = torch.tensor([[start, *tokenize(trunk, text)[:-1]]], device=trunk.device)
            states.append(compute(ids)[0].float().cpu())
    return states


@dataclass(frozen=True, eq=False)
class RunningContext:
    """The sums so far.

    Attributes:
        sums: m by horizon, ``(S, D)``.
        counts: w by horizon, ``(S, 1)``.
        keep: β by horizon, ``(S, 1)``.
    """

    sums: Tensor
    counts: Tensor
    keep: Tensor

    @classmethod
    def empty(cls, width: int) -> RunningContext:
        """Return the context before the first token."""
        count = len(HORIZONS)
        keep = 1 - 1 / torch.tensor(HORIZONS, dtype=torch.float32)[:, None]
        return cls(torch.zeros(count, width), torch.zeros(count, 1), keep)


def update_context(context: RunningContext, z: Tensor) -> tuple[RunningContext, Tensor]:
    """Add one bus vector ``(D,)``; return the context after it and c ``(S·D,)``."""
    keep = context.keep
    after = RunningContext(keep * context.sums + z, keep * context.counts + 1, keep)
    return after, (after.sums / after.counts).flatten()


def contexts(h: Tensor, *, eps: float) -> Tensor:
    """Return c ``(T, S·D)`` of the states ``(T, D)`` of one text.

    Args:
        h: The states, in order.
        eps: ε of the bus norm.
    """
    z = nn.functional.layer_norm(h, h.shape[-1:], eps=eps)
    start = RunningContext.empty(h.shape[-1])
    sums = z[:, None].repeat(1, len(start.keep), 1)  # (T, S, D)
    counts = z.new_ones(len(z), len(start.keep), 1)
    for before, rows in ((start.sums, sums), (start.counts, counts)):
        for older, row in pairwise((before, *rows)):
            row += start.keep * older  # noqa: PLW2901  (in place: the next one starts from it)
    return (sums / counts).flatten(1)


def with_contexts(h: Tensor, layout: FeatureLayout | None, *, eps: float) -> Tensor:
    """Return h̃ ``(T, …)`` of the states ``(T, D)`` of one text."""
    if layout is None or not layout.segments:
        return h
    return torch.cat([h, contexts(h, eps=eps)], dim=-1)


def context_layout(width: int) -> FeatureLayout:
    """Return h̃ = [ h | c ], of which experts read z and the router all."""
    context = FeatureSegment(
        key=f"context {HORIZONS}",
        width=len(HORIZONS) * width,
        normalised=False,
        compute=None,
        readers=(ROUTER,),
    )
    return FeatureLayout(width=width, segments=(context,))
