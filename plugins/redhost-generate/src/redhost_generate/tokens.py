"""The rows of a text on the bus of a backbone that generates text: one row for each token.

    row t      h_t, the state after [start, x_1 … x_t-1], and c_t, its running context
    its answer x_t, as a token id

The tokenizer's start token is put before every text, so that the first token is predicted as well.
The router reads the running context in addition to z. For each horizon, it is an exponentially
weighted mean of the bus vectors so far, in which older vectors count less:

    m_t = β m_t-1 + z_t    w_t = β w_t-1 + 1    c_t = m_t / w_t    β = 1 − 1/horizon

Legend: T tokens, D width, S horizons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.bus.layout import ROUTER, FeatureLayout, FeatureSegment
from redhost.core.bus.unit import Inside, Pass, Unit
from redhost.core.types import Row
from redhost.registry.errors import UsageError

if TYPE_CHECKING:
    from redhost_author.training.task_recipe import TaskRecipe

    from redhost.core.model.composed import ComposedModel
    from redhost_generate.pipeline import TextGeneration

__all__ = [
    "RunningContext",
    "Tokens",
    "byte_counts",
    "context_layout",
    "contexts",
    "generating_trunk",
    "last_row",
    "llama_cpp_start",
    "start_of",
    "token_states",
    "tokenize",
    "update_context",
]

PASS_TOKENS = 512
"""Most tokens in a training pass: every token has logits over a vocabulary."""

HORIZONS = (8, 64)
"""Horizons of the running context, in tokens; other lengths were not tried."""


def generating_trunk(model: ComposedModel) -> TextEncoder:
    """Return the encoder of a composition on a generating backbone.

    Raises:
        UsageError: If the backbone does not generate.
    """
    backbone = model.backbone
    if not backbone.task.unit.generates:
        raise UsageError(
            f"backbone {backbone.name!r} does not generate text",
            expected="one made with 'redhost new-backbone --task generation'",
            found=backbone.task.name,
            hint="Ask it with 'redhost predict'.",
        )
    return backbone.trunk


def start_of(trunk: TextEncoder) -> int:
    """Return the id of the token that is put before every text.

    Raises:
        UsageError: If the tokenizer has neither a start-of-text nor an end-of-text token.
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


def llama_cpp_start(trunk: TextEncoder) -> str:
    """Return the option by which llama.cpp's programs start a text as `redhost generate` does.

    A model that llama.cpp converted starts texts as the tokenizer itself does. If that is the same,
    the option is empty.
    """
    start, own = start_of(trunk), trunk.token_ids("a", add_special_tokens=True)
    if own[:1] == [start]:
        return ""
    keys = ["tokenizer.ggml.add_bos_token=bool:true"]
    if trunk.tokenizer.bos_token_id != start:
        keys.append(f"tokenizer.ggml.bos_token_id=int:{start}")
    return f"--override-kv {','.join(keys)}"


def tokenize(trunk: TextEncoder, text: str, *, whole: bool = False) -> list[int]:
    """Return the token ids of a text, without the start token.

    Args:
        trunk: The encoder whose tokenizer is used.
        text: The text; not empty.
        whole: Whether to return all tokens rather than cut at the trunk's longest input.

    Raises:
        UsageError: If the text has no tokens.
    """
    ids = trunk.token_ids(text, add_special_tokens=False)
    if not ids:
        raise UsageError("a text has no tokens", expected="at least one", found=repr(text))
    return ids if whole else ids[: trunk.longest]


def byte_counts(trunk: TextEncoder, texts: Sequence[str]) -> list[int]:
    """Return the number of UTF-8 bytes that the tokens of each text represent."""
    counts = []
    for text in texts:
        ids = tokenize(trunk, text)
        # Decode only texts that may have been cut: decoding need not restore the exact text.
        read = str(trunk.tokenizer.decode(ids)) if len(ids) == trunk.longest else text
        counts.append(len(read.encode()))
    return counts


def token_states(
    trunk: TextEncoder, texts: Sequence[str], *, compute: Callable[[Tensor], Tensor] | None = None
) -> list[Tensor]:
    """Return h ``(T, D)`` of each text: the states from which its tokens are predicted.

    Args:
        trunk: The encoder.
        texts: Any texts.
        compute: Token ids ``(1, T)`` → states ``(1, T, D)``, to compute something other than h.
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
    """The state of the running context: weighted sums and counts so far.

    Attributes:
        sums: m for each horizon, ``(S, D)``.
        counts: w for each horizon, ``(S, 1)``.
        keep: β for each horizon, ``(S, 1)``.
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
    z = nn.functional.layer_norm(h, h.shape[1:], eps=eps)
    start = RunningContext.empty(h.shape[1])
    sums = z[:, None].repeat(1, len(start.keep), 1)  # (T, S, D)
    counts = z.new_ones(len(z), len(start.keep), 1)
    for before, rows in ((start.sums, sums), (start.counts, counts)):
        for older, row in pairwise((before, *rows)):
            row += start.keep * older  # noqa: PLW2901  (in place: the next row builds on this one)
    return (sums / counts).flatten(1)


@dataclass(frozen=True)
class Tokens(Unit[TextEncoder]):
    """Each token of a text is a row, predicted from the tokens before it."""

    name, does, generates = "token", "generates text", True
    classifier = False
    instead = "next tokens"
    router = "causal"  # one product with the language-model head for any number of experts
    pooling = "last"

    @property
    def recipe(self) -> TaskRecipe:
        """The steps from documents to an expert."""
        from redhost_generate.recipe import GenerationRecipe

        return GenerationRecipe()

    @property
    def pipeline(self) -> type[TextGeneration]:
        """A host as the pipeline ``text-generation`` of transformers."""
        from redhost_generate.pipeline import TextGeneration

        return TextGeneration

    def first_output(self, model: ComposedModel) -> Mapping[str, Sequence[float]]:
        """Return p and α after the start token."""
        from redhost_generate.sessions import session_of

        ids = [start_of(model.backbone.trunk)]
        p, alpha = session_of(model).step(ids)
        return {"": [*p.tolist(), *alpha.tolist()]}

    def require(self, trunk: TextEncoder, text: str) -> None:
        """Check that a text has tokens."""
        tokenize(trunk, text)

    def rows(self, trunk: TextEncoder, rows: Sequence[Row]) -> list[Row]:
        """Return a row for each token of texts: its label is the token id."""
        return [
            Row(text="", label=str(token), domain=row.domain)
            for row in rows
            for token in tokenize(trunk, row.text)
        ]

    def states(self, trunk: TextEncoder, texts: Sequence[str]) -> list[Tensor]:
        """Return h ``(T, D)`` of each text, from which its tokens are predicted."""
        return token_states(trunk, texts)

    def features(self, states: Tensor, layout: FeatureLayout | None, *, eps: float) -> Tensor:
        """Return h̃ ``(T, …)`` of the states ``(T, D)`` of one text."""
        if layout is None or not layout.segments:
            return states
        return torch.cat([states, contexts(states, eps=eps)], dim=1)

    def layout(self, width: int) -> FeatureLayout:
        """Return the layout h̃ = [ h | c ]: experts read z, the router reads z and c."""
        return context_layout(width)

    def refuses_inside(self, acts: Inside | None) -> str | None:
        """Return what is expected, unless an expert changes h row by row.

        With any other intervention, the KV cache is that of the unchanged backbone.
        """
        if acts is None or (acts.changes_h and acts.rowwise):
            return None
        return "an expert above the blocks for text, or one that changes h row by row"

    def check_trunk(self, trunk: TextEncoder) -> None:
        """Check that the tokenizer has a token to start a text with."""
        start_of(trunk)

    def routed(self, trunk: TextEncoder, texts: Sequence[str], *, width: int, eps: float) -> Tensor:
        """Return h̃ ``(N, …)`` after the last token of each text; a text may be empty."""
        ids = [[start_of(trunk), *(tokenize(trunk, text) if text else ())] for text in texts]
        rows = [last_row(trunk, row[: trunk.longest], width=width, eps=eps) for row in ids]
        return torch.cat(rows)

    def passes(
        self, trunk: TextEncoder, texts: Sequence[str], targets: Callable[[], Tensor], *, most: int
    ) -> Iterator[Pass]:
        """Yield texts in passes of at most `PASS_TOKENS` tokens; each token is its own target."""
        start = start_of(trunk)
        tokens = sorted(([start, *tokenize(trunk, text)] for text in texts), key=len)
        for length, alike in groupby(tokens, key=len):
            count = max(1, PASS_TOKENS // length)
            while some := list(islice(alike, count)):
                whole = torch.tensor(some, device=trunk.device)
                yield Pass(ids=whole[:, :-1], targets=whole[:, 1:].flatten())

    def pooled(self, trunk: TextEncoder, states: Tensor) -> Tensor:
        """Return the state of every token ``(N, D)``."""
        return states.flatten(0, 1)

    def byte_counts(self, trunk: TextEncoder, texts: Sequence[str]) -> list[int]:
        """Return the number of UTF-8 bytes that the tokens of each text stand for."""
        return byte_counts(trunk, texts)

    def passed(
        self,
        trunk: TextEncoder,
        texts: Sequence[str],
        states: Callable[[Tensor], Tensor],
        *,
        alone: bool,
    ) -> Tensor:
        """Return the states ``(N, D)`` from which the tokens of texts are predicted."""
        rows = token_states(trunk, texts, compute=states)
        return torch.cat([torch.empty(0, trunk.width), *rows])


def last_row(trunk: TextEncoder, ids: Sequence[int], *, width: int, eps: float) -> Tensor:
    """Return h̃ ``(1, …)`` after the last of some tokens.

    Args:
        trunk: The encoder.
        ids: The token ids, the start token included.
        width: D.
        eps: ε of the bus norm.
    """
    with trunk.lock:
        tokens = torch.tensor([list(ids)], device=trunk.device)
        h = trunk.hidden_states(tokens)[0].float().cpu()
    unit = Tokens()
    return unit.features(h, unit.layout(width), eps=eps)[-1:]


def context_layout(width: int) -> FeatureLayout:
    """Return the layout h̃ = [ h | c ]: experts read z, the router reads z and c."""
    context = FeatureSegment(
        key=f"context {HORIZONS}",
        width=len(HORIZONS) * width,
        normalised=False,
        compute=None,
        readers=(ROUTER,),
    )
    return FeatureLayout(width=width, segments=(context,))
