"""One pass of the encoder for the next tokens of several texts.

    | token of text 1 | token of text 2 | … |

Linear layers see all rows at once: their weights, whose reading takes most of the time of a text
that is alone, are read once for all. Attention is computed text by
text, over the text's own KV cache. Adapters act on the rows of their own texts. A text's numbers
differ from those without company by rounding alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.packs import Pack
from redhost.core.backbones.tiles import Run
from redhost_generate.sessions import Session, answers

__all__ = ["ActsOnRows", "passes", "step_together"]

BY_CACHE = "redhost_by_cache"
"""The name under which the attention of these passes is registered with transformers."""


@runtime_checkable
class ActsOnRows(Intervention, Protocol):
    """An intervention that can act on the rows of some texts of a pass."""

    @property
    def acts_on_rows(self) -> bool:
        """Whether it can: it replaces nothing that other texts need."""
        ...

    def on_rows(
        self, encoder: TextEncoder, pack: Pack, acts: Sequence[Intervention | None]
    ) -> AbstractContextManager[None]:
        """Return the context in which texts of a pack have interventions of their own.

        Args:
            encoder: The encoder.
            pack: The texts.
            acts: The intervention of each text, of this class; None for another, or none.
        """
        ...


def passes(sessions: Sequence[Session], tokens: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the sessions of each pass, as indices.

    Sessions with one more token share a pass where their encoder computes texts in packs; a prompt,
    and a session without company, has a pass of its own.

    Args:
        sessions: Different sessions.
        tokens: The further tokens of each.
    """
    return _groups(len(sessions), lambda n: _pass_of(sessions[n], tokens[n]) or n)


def step_together(
    sessions: Sequence[Session], tokens: Sequence[list[int]]
) -> list[tuple[Tensor, Tensor]]:
    """Return p(x_t+1 | x_≤t) ``(V,)`` and α ``(K,)`` of the sessions of a pass after more tokens.

    Args:
        sessions: One session, or several that share a pass (`passes`).
        tokens: The further tokens of each.
    """
    if len(sessions) == 1:
        return [sessions[0].step(tokens[0])]
    made = dict[int, tuple[Tensor, Tensor]]()
    with torch.inference_mode():
        states = _states(sessions, [ids[0] for ids in tokens])
        rows = [s.row(state) for s, state in zip(sessions, states, strict=True)]
        for members in _groups(len(sessions), lambda n: sessions[n].group):
            some = [sessions[n] for n in members]
            made |= zip(members, answers(some, torch.cat([rows[n] for n in members])), strict=True)
    return [made[n] for n in range(len(sessions))]


def _groups(count: int, key: Callable[[int], Hashable]) -> list[list[int]]:
    """Return the numbers below a count in groups of one key."""
    groups = defaultdict[Hashable, list[int]](list)
    for n in range(count):
        groups[key(n)].append(n)
    return [*groups.values()]


def _pass_of(session: Session, tokens: Sequence[int]) -> Hashable:
    """Return the key of the pass that a session can share with others; None if it cannot."""
    trunk, acts = session.trunk, session.acts
    return (
        len(tokens) == 1
        and session.cache is not None
        and (acts is None or (isinstance(acts, ActsOnRows) and acts.acts_on_rows))
        and trunk.device.type == "cpu"
        and trunk.has_states
        and trunk.tiles.is_packed
        and hasattr(trunk.model.config, "_attn_implementation")  # not an encoder of our own
        and (id(trunk), "pass")
    ) or None


def _states(sessions: Sequence[Session], tokens: Sequence[int]) -> list[Tensor]:
    """Return the states ``(1, D)`` of one more token of each session, computed in one pass."""
    trunk, caches = sessions[0].trunk, [s.cache for s in sessions]
    pack = Pack(
        index=range(len(tokens)),
        ids=torch.tensor([tokens]),
        places=torch.tensor([[c.get_seq_length() for c in caches]]),
        runs=(Run(start=0, texts=len(tokens), tokens=1),),
        sections=((len(tokens), 1),),  # for adapters, whose rows may be single ones
    )
    whole = ((len(tokens), len(tokens)),)
    tiles = trunk.tiles.applied(len(tokens), sections=whole, runs=pack.runs)
    with trunk.lock, _acting(trunk, pack, [s.acts for s in sessions]), tiles, _attending(trunk):
        output = trunk.model(
            input_ids=pack.ids, position_ids=pack.places, caches=caches, use_cache=False
        )
    return [*output.last_hidden_state[0].float().split(1)]


@contextmanager
def _acting(trunk: TextEncoder, pack: Pack, acts: Sequence[Intervention | None]) -> Iterator[None]:
    """Let the interventions of every class act on the rows of their own texts."""
    with ExitStack() as stack:
        for kind, one in {type(a): a for a in acts if isinstance(a, ActsOnRows)}.items():
            same = [a if isinstance(a, kind) else None for a in acts]
            stack.enter_context(one.on_rows(trunk, pack, same))
        yield


@contextmanager
def _attending(trunk: TextEncoder) -> Iterator[None]:
    """Compute attention over the KV cache of each text, within a ``with`` block."""
    config: Any = trunk.model.config
    before = config._attn_implementation
    _register()
    config._attn_implementation = BY_CACHE
    try:
        yield
    finally:
        config._attn_implementation = before


@cache
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(BY_CACHE, attend)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    caches: Sequence[Any],
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention ``(1, N, H, W)`` of a token of each text over the text's KV cache.

    Args:
        module: The attention module.
        query: ``(1, H, N, W)``.
        key: The same shape, with the number of key heads.
        value: Likewise.
        _mask: None: a token sees all before it.
        caches: The KV cache of each text, which its keys and values are added to.
        options: Other arguments that transformers passes.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    parts, rows = [], (torch.split(x, 1, dim=2) for x in (query, key, value))
    for kept, q, k, v in zip(caches, *rows, strict=True):
        keys, values = kept.update(k, v, module.layer_idx)
        parts.append(sdpa_attention_forward(module, q, keys, values, None, **options)[0])
    return torch.cat(parts, dim=1), None
