"""The expert of a conversation, as the router of one generation chooses it.

The weights are those of `redhost route`: one pass of the backbone, and no expert is read. Those of
a conversation are the mean of two: of its newest message, and of the newest `RECENT` as one text.
It stays with its expert until another one leads by more than a margin. Nothing is kept about
conversations: who had it before follows from its earlier messages, which each request has.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from redhost_serve.batcher import Batcher, FullError

import redhost
from redhost_gateway.evidence import window
from redhost_gateway.problems import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from redhost.core.model.route import Chooser

__all__ = ["BACKBONE", "Chosen", "Serving", "serve_generation"]

BACKBONE = "backbone"
"""The column without an expert."""

ADAPTER = "lora"
"""The form of experts that are adapters."""

TURNS = 16
"""Number of a conversation's last messages of users after which an expert is looked for."""

RECENT = 3
"""Number of messages that are one text. A longer memory holds on to an old topic, and a message
alone may say little. Of 1, 2, 3, 4 and all messages, alone or in the mean, and of means of all that
decay by 0.2 to 0.8 a message, it was chosen on conversations of shipped gate rows and of newsgroup
posts, with a change of topic and asides. On others of them, the share of messages that got their
topic's expert was 0.75 and 0.77, where all messages as one text had 0.30 and 0.66."""

REMEMBERED = 1024
"""Number of texts whose weights are kept."""

SHOWN = 8
"""Most columns whose weights are reported."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The expert of a request.

    Attributes:
        expert: Its id, or `BACKBONE`.
        weight: Its weight.
        weights: The largest weights by column, the largest first.
        generation: The number of the generation that chose.
    """

    expert: str
    weight: float
    weights: Mapping[str, float]
    generation: int

    @property
    def declined(self) -> bool:
        """Whether the request belongs to no expert's domain."""
        return self.expert == BACKBONE


@dataclass(eq=False, kw_only=True)
class Serving:
    """A generation that chooses.

    Attributes:
        number: Its number.
        columns: The router's columns.
        adapters: Id → digest of the package, of experts that are adapters.
        weights_of: Returns the weights ``(N, K)`` of texts.
        newest_first: How conversations are joined, see `window`.
        margin: How far another expert has to lead to take over a conversation.
        queue: Maximum number of requests that wait for a choice.
        lease: Keeps the generation on disk.
        users: Number of requests that were chosen by it and are not answered yet.
    """

    number: int
    columns: tuple[str, ...]
    adapters: Mapping[str, str]
    weights_of: Callable[[Sequence[str]], Tensor]
    newest_first: bool
    margin: float
    queue: int
    lease: ExitStack = field(default_factory=ExitStack)
    users: int = 0

    def __post_init__(self) -> None:
        """Start the thread that computes weights."""
        self._rows: OrderedDict[str, Tensor] = OrderedDict()
        self._batcher: Batcher[str, Tensor] = Batcher(
            lambda texts: list(self.weights_of(texts)), queue=self.queue, texts=64
        )

    async def choose(self, conversations: Sequence[Sequence[str]]) -> Chosen:
        """Return the expert of all conversations of a request.

        Args:
            conversations: The texts of their users, the oldest first.

        Raises:
            Problem: 400, if they belong to different experts or cannot be read; 429, if too many
                requests wait; 503, if the router fails.
        """
        found = [await self._choose(turns) for turns in conversations]
        if len({chosen.expert for chosen in found}) > 1:
            raise Problem(
                400,
                "the prompts of this request belong to different experts: send them one by one",
                code="several_experts",
            )
        return found[0]

    async def _choose(self, turns: Sequence[str]) -> Chosen:
        ends = range(max(1, len(turns) - TURNS + 1), len(turns) + 1)
        ends = ends if self.margin else ends[-1:]
        recent = [turns[max(0, end - RECENT) : end] for end in ends]
        texts = [
            window(part, newest_first=self.newest_first)
            for messages in recent
            for part in (messages[-1:], messages)
        ]
        weights = await self._weights(texts)
        rows = [(a + b) / 2 for a, b in zip(weights[::2], weights[1::2], strict=True)]
        held = int(rows[0].argmax())
        for row in rows[1:]:
            best = int(row.argmax())
            if float(row[best] - row[held]) > self.margin:
                held = best
        last = rows[-1]
        largest = last.topk(min(SHOWN, len(self.columns)))
        return Chosen(
            expert=self.columns[held],
            weight=float(last[held]),
            weights={self.columns[k]: float(last[k]) for k in largest.indices.tolist()},
            generation=self.number,
        )

    async def _weights(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the weights of texts; those of a conversation's earlier messages are known."""
        found = {text: self._rows[text] for text in texts if text in self._rows}
        if unknown := [text for text in dict.fromkeys(texts) if text not in found]:
            found.update(zip(unknown, await self._ask(unknown), strict=True))
        for text, row in found.items():
            self._rows[text] = row
            self._rows.move_to_end(text)
        while len(self._rows) > REMEMBERED:
            self._rows.popitem(last=False)
        return [found[text] for text in texts]

    async def _ask(self, texts: Sequence[str]) -> list[Tensor]:
        try:
            return await self._batcher.ask(texts)
        except FullError:
            raise Problem(
                429, "too many requests wait for a choice", code="too_many_requests", retry_after=1
            ) from None
        except redhost.UsageError as e:
            raise Problem(400, e.problem, code="unreadable_text") from e
        except Exception as e:
            raise Problem(
                503, f"the router failed on this: {type(e).__name__}", code="router_failed"
            ) from e

    async def close(self) -> None:
        """Answer what waits, stop the thread, and let the generation go."""
        await asyncio.to_thread(self._batcher.close)
        self.lease.close()


def serve_generation(host: redhost.Host, number: int, *, margin: float, queue: int) -> Serving:
    """Read a generation's backbone and router from the store, and no expert's weights.

    Args:
        host: The home.
        number: The generation.
        margin: As in `Serving`, like the next.
        queue: Maximum number of requests that wait for a choice.

    Raises:
        RedhostError: If it cannot choose; the message says why.
    """
    lease = ExitStack()
    with suppress(redhost.errors.StoreError):  # of a home that is only read, gc removes nothing
        lease.enter_context(redhost.plugins.Leases(host.home).hold(number))
    try:
        chooser: Chooser = host.session.loader.chooser(number)
        chooser.weights(["warm-up"])
        adapters = _adapters(host, number)
    except BaseException:
        lease.close()
        raise
    return Serving(
        number=number,
        columns=chooser.columns,
        adapters=adapters,
        weights_of=chooser.weights,
        newest_first=chooser.backbone.task.name != "generation",
        margin=margin,
        queue=queue,
        lease=lease,
    )


def _adapters(host: redhost.Host, number: int) -> dict[str, str]:
    """Return the adapters of a generation, as their manifests say; no weights are read."""
    found = {}
    for member in host.generations.load(number).experts:
        manifest = msgspec.json.decode(host.store.file(member.digest, "expert.json"))
        if manifest.get("form") == ADAPTER:
            found[member.id] = member.digest
    return found
