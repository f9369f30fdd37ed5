"""One pass of the encoder for further tokens of several texts.

    | token of text 1 | token of text 2 | prompt of text 3 | … |

Linear layers see all rows at once: their weights, whose reading takes most of the time of a text
that is alone, are read once for all. Attention is computed text by text, over the text's own KV
cache. Adapters act on the rows of their own texts. A text's numbers differ from those without
company by rounding alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import accumulate, chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.packs import Pack, attending
from redhost.core.backbones.tiles import PASS_TOKENS, Run
from redhost_generate.sessions import Session, answers

__all__ = ["ActsOnRows", "passes", "step_batch"]

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

    Sessions share passes of at most `PASS_TOKENS` tokens where their encoder computes texts in
    packs: prompts, and single tokens after them. A longer prompt has a pass of its own.

    Args:
        sessions: Different sessions.
        tokens: The further tokens of each.
    """
    found = list[list[int]]()
    for members in _groups(len(sessions), lambda n: _pass_of(sessions[n], tokens[n]) or n):
        room = 0
        for n in members:
            if len(tokens[n]) > room:
                found.append([])
                room = PASS_TOKENS
            found[-1].append(n)
            room -= len(tokens[n])
    return found


def step_batch(
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
        states = _states(sessions, tokens)
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
        (session.cache is None or len(tokens) == 1)
        and session.routed is None
        and (acts is None or (isinstance(acts, ActsOnRows) and acts.acts_on_rows))
        and trunk.device.type == "cpu"
        and trunk.has_states
        and trunk.tiles.is_packed
        and hasattr(trunk.model.config, "_attn_implementation")  # not an encoder of our own
        and (id(trunk), "pass")
    ) or None


def _states(sessions: Sequence[Session], tokens: Sequence[list[int]]) -> list[Tensor]:
    """Return the states ``(T, D)`` of more tokens of each session, computed in one pass."""
    from transformers import DynamicCache

    trunk = sessions[0].trunk
    for session in sessions:
        if session.cache is None:
            session.cache = DynamicCache(config=trunk.model.config)
    caches, lengths = [s.cache for s in sessions], [len(ids) for ids in tokens]
    begun = [c.get_seq_length() for c in caches]
    places = [torch.arange(n, n + m) for n, m in zip(begun, lengths, strict=True)]
    pack = Pack(
        index=range(len(tokens)),
        ids=torch.tensor([[*chain(*tokens)]]),
        places=torch.cat(places)[None],
        runs=tuple(
            Run(start=end - n, texts=1, tokens=n)
            for end, n in zip(accumulate(lengths), lengths, strict=True)
        ),
        sections=tuple((n, n) for n in lengths),  # an adapter's rows are those of its text
    )
    count = sum(lengths)
    tiles = trunk.tiles.applied(count, sections=((count, count),), runs=pack.runs)
    attention = attending(trunk.model, name=BY_CACHE, function=attend)
    with trunk.lock, _acting(trunk, pack, [s.acts for s in sessions]), tiles, attention:
        output = trunk.model(
            input_ids=pack.ids,
            position_ids=pack.places,
            caches=caches,
            lengths=lengths,
            use_cache=False,
        )
    return [*torch.split(output.last_hidden_state[0].float(), lengths)]


@contextmanager
def _acting(trunk: TextEncoder, pack: Pack, acts: Sequence[Intervention | None]) -> Iterator[None]:
    """Let the interventions of every class act on the rows of their own texts."""
    with ExitStack() as stack:
        for kind, one in {type(a): a for a in acts if isinstance(a, ActsOnRows)}.items():
            same = [a if isinstance(a, kind) else None for a in acts]
            stack.enter_context(one.on_rows(trunk, pack, same))
        yield


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    caches: Sequence[Any],
    lengths: list[int],
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention ``(1, N, H, W)`` of further tokens of each text over the text's KV cache.

    Args:
        module: The attention module.
        query: ``(1, H, N, W)``.
        key: The same shape, with the number of key heads.
        value: Likewise.
        _mask: None: a prompt is causal by itself, and a single token sees all before it.
        caches: The KV cache of each text, which its keys and values are added to.
        lengths: The number of further tokens of each text.
        options: Other arguments that transformers passes.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    parts, rows = [], (torch.split(x, lengths, dim=2) for x in (query, key, value))
    for kv, q, k, v in zip(caches, *rows, strict=True):
        keys, values = kv.update(k, v, module.layer_idx)
        parts.append(sdpa_attention_forward(module, q, keys, values, None, **options)[0])
    return torch.cat(parts, dim=1), None
