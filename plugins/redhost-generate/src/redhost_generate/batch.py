"""One pass of the encoder for further tokens of several texts.

    | token of text 1 | token of text 2 | prompt of text 3 | … |

Linear layers see all rows at once: their weights, whose reading takes most of the time of a text
that is alone, are read once for all. Single tokens attend side by side (`tables`), each to its own
text; prompts one by one. An adapter acts on the rows of its own texts, which are neighbours. A
text's numbers differ from those without company by rounding alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.packs import Pack, attending
from redhost.core.backbones.tiles import PASS_TOKENS, Run
from redhost_generate.sessions import Session, answers
from redhost_generate.tables import room_for, table_of

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


def passes(sessions: Sequence[Session]) -> list[list[int]]:
    """Return the sessions of each pass, as indices.

    Sessions share passes of at most `PASS_TOKENS` tokens where their encoder computes texts in
    packs: prompts, and single tokens after them. The parts of a longer prompt are read alone.

    Args:
        sessions: Different sessions.
    """
    found = list[list[int]]()
    for members in _groups(range(len(sessions)), lambda n: _pass_of(sessions[n]) or n):
        room = 0
        for n in members:
            tokens = len(sessions[n].part)
            if tokens > room:
                found.append([])
                room = PASS_TOKENS
            found[-1].append(n)
            room -= tokens
    return found


def step_batch(sessions: Sequence[Session]) -> list[tuple[Tensor, Tensor] | None]:
    """Read the next part of each session of a pass; return p(x_t+1 | x_≤t) ``(V,)`` and α ``(K,)``.

    A session that has to read more before it answers has None instead.

    Args:
        sessions: One session, or several that share a pass (`passes`).
    """
    made = dict[int, tuple[Tensor, Tensor]]()
    with torch.inference_mode():
        states = [sessions[0].read()] if len(sessions) == 1 else _states(sessions)
        taken = (s.take(state) for s, state in zip(sessions, states, strict=True))
        rows = {n: row for n, row in enumerate(taken) if row is not None}
        for members in _groups(rows, lambda n: sessions[n].group):
            some = [sessions[n] for n in members]
            made |= zip(members, answers(some, torch.cat([rows[n] for n in members])), strict=True)
    return [made.get(n) for n in range(len(sessions))]


def _groups(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Return numbers in groups of one key."""
    groups = defaultdict[Hashable, list[int]](list)
    for n in numbers:
        groups[key(n)].append(n)
    return [*groups.values()]


def _pass_of(session: Session) -> Hashable:
    """Return the key of the pass that a session can share with others; None if it cannot."""
    trunk, acts, unread = session.trunk, session.acts, len(session.unread)
    return (
        session.shares
        and (unread == 1 or (session.past is None and unread <= PASS_TOKENS))
        and (acts is None or (isinstance(acts, ActsOnRows) and acts.acts_on_rows))
        and trunk.device.type == "cpu"
        and trunk.has_states
        and trunk.tiles.is_packed
        and hasattr(trunk.model.config, "_attn_implementation")  # not an encoder of our own
        and (id(trunk), "pass")
    ) or None


def _states(sessions: Sequence[Session]) -> list[Tensor]:
    """Return the states ``(T, D)`` of the next part of each session, computed in one pass."""
    trunk, tokens = sessions[0].trunk, [s.part for s in sessions]
    parts = [*_parts(sessions, tokens)]
    order = [n for part in parts for n in part.texts]
    lengths, acts = [len(tokens[n]) for n in order], [sessions[n].acts for n in order]
    ends, count = [*accumulate(lengths)], sum(lengths)
    pack = Pack(
        index=range(len(order)),
        ids=torch.tensor([[*chain(*(tokens[n] for n in order))]]),
        places=torch.cat([part.places for part in parts])[None],
        runs=tuple(
            Run(start=end - n, texts=1, tokens=n) for end, n in zip(ends, lengths, strict=True)
        ),
        # An adapter's rows are those of its texts: single tokens that are neighbours, or a prompt.
        sections=tuple(
            (rows, rows)
            for _, some in groupby(range(len(order)), key=lambda n: _section(n, lengths, acts))
            for rows in [sum(lengths[n] for n in some)]
        ),
    )
    whole = (Run(start=0, texts=1, tokens=count),)
    tiles = trunk.tiles.applied(count, sections=((count, count),), runs=whole)
    attention = attending(trunk.model, name=BY_CACHE, function=attend)
    with trunk.lock, _acting(trunk, pack, acts), tiles, attention:
        output = trunk.model(
            input_ids=pack.ids, position_ids=pack.places, parts=parts, use_cache=False
        )
    for part in parts:
        part.end()
    states = torch.split(output.last_hidden_state[0].float(), lengths)
    return [state for _, state in sorted(zip(order, states, strict=True), key=itemgetter(0))]


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
    parts: Sequence[_Part],
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention ``(1, N, H, W)`` of further tokens of each text over its keys and values.

    Args:
        module: The attention module.
        query: ``(1, H, N, W)``.
        key: The same shape, with the number of key heads.
        value: Likewise.
        _mask: None: the parts know what their tokens see.
        parts: The texts of the pass.
        options: Other arguments that transformers passes.
    """
    sizes = [len(part.places) for part in parts]
    rows = zip(*(torch.split(x, sizes, dim=2) for x in (query, key, value)), strict=True)
    made = [p.attend(module, *some, **options) for p, some in zip(parts, rows, strict=True)]
    return torch.cat(made, dim=1), None


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Texts of a pass that attend in one call.

    Attributes:
        texts: Their numbers, in the order of their rows.
        places: The places of their tokens.
        attend: Module, query, key and value of their rows → attention ``(1, n, H, W)``.
        end: To be called after the pass.
    """

    texts: Sequence[int]
    places: Tensor
    attend: Callable[..., Tensor]
    end: Callable[[], None] = lambda: None


def _parts(sessions: Sequence[Session], tokens: Sequence[list[int]]) -> Iterator[_Part]:
    """Yield the texts of a pass: single tokens by the room of their rows, then prompts."""
    from transformers import DynamicCache

    def room(n: int) -> int:
        return 0 if sessions[n].past is None else room_for(sessions[n].seen + 1)

    for members in _groups(range(len(sessions)), room):
        if room(members[0]):
            members.sort(key=lambda n: id(sessions[n].acts))  # an adapter's rows are neighbours
            table = table_of([sessions[n] for n in members], room=room(members[0]))
            texts = sorted(members, key=lambda n: sessions[n].past.at)
            yield _Part(texts=texts, places=table.begin(), attend=table.attend, end=table.end)
            continue
        for n in members:
            cache = DynamicCache(config=sessions[n].trunk.model.config)
            sessions[n].past = cache
            places = torch.arange(len(tokens[n]))
            yield _Part(texts=[n], places=places, attend=partial(_attend_prompt, cache))


def _attend_prompt(
    cache: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Tensor:
    """Return attention ``(1, T, H, W)`` of a prompt, and keep its keys and values."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    keys, values = cache.update(key, value, module.layer_idx)
    found: Tensor = sdpa_attention_forward(module, query, keys, values, None, **options)[0]
    return found


def _section(n: int, lengths: Sequence[int], acts: Sequence[object]) -> Hashable:
    """Return the key of the section that a text of a pass is in."""
    return id(acts[n]) if lengths[n] == 1 else (n,)
