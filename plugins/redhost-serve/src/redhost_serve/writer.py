"""Text generation: one thread generates a token of each text in turn, so all make progress.

The texts that wait for a token when it is free are continued together, in one pass of the encoder.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from redhost_serve.batcher import Batcher, FullError
from redhost_serve.threads import run_contained

__all__ = ["Writer"]

T = TypeVar("T")

GATHER = 0.005
"""Seconds for which a pass waits for all texts in progress: their last tokens are on their way."""

READING: Final = "reading"
"""What stands for a token of a text whose prompt is not read to its end: others go on meanwhile."""


@dataclass(frozen=True, eq=False)
class _Next(Generic[T]):
    """The step to a text's next token."""

    text: Iterator[T]


class Writer:
    """One thread, and a bounded number of concurrent texts.

    Args:
        queue: Maximum number of concurrent texts.
        texts: Maximum number of texts in a pass.
        read_batch: Texts in progress → for each, a function that returns its next token, None after
            the last one, `READING` while a long prompt is read in parts, or raises.
    """

    def __init__(
        self,
        *,
        queue: int,
        texts: int,
        read_batch: Callable[[Sequence[Any]], Sequence[Callable[[], Any]]],
    ) -> None:
        self.queue, self.texts, self.read_batch, self.under_way = queue, texts, read_batch, 0
        self._steps: Batcher[Callable[[], Any] | _Next[Any], Future[Any]] = Batcher(
            self._advance, queue=sys.maxsize, texts=1, wait=GATHER
        )

    def __len__(self) -> int:
        """Return the number of concurrent texts."""
        return self.under_way

    @property
    def working(self) -> bool:
        """Whether its thread runs."""
        return self._steps.working

    async def write(self, begin: Callable[[], Iterator[T]]) -> AsyncGenerator[T | None, None]:
        """Yield None when generation has started, then the tokens; closing it ends it early.

        Args:
            begin: Returns the iterator of tokens, or raises.

        Raises:
            FullError: If the maximum number of texts is reached.
        """
        if self.under_way >= self.queue:
            raise FullError
        self._count(1)
        try:
            text = await self._call(begin)
            yield None
            while (token := await self._call(_Next(text))) is not None:
                if token != READING:
                    yield cast("T", token)
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        """Note that texts begin or end: a pass is full with all that are in progress."""
        self.under_way += more
        self._steps.texts = max(1, min(self.under_way, self.texts))

    async def _call(self, step: Callable[[], Any] | _Next[Any]) -> Any:
        [done] = await self._steps.ask([step])
        return done.result()

    def _advance(self, steps: Sequence[Callable[[], Any] | _Next[Any]]) -> list[Future[Any]]:
        """Begin texts, and continue the others together; an error is that of one step."""
        going = [s.text for s in steps if isinstance(s, _Next)]
        choices = iter(self.read_batch(going))
        return [_done(next(choices) if isinstance(s, _Next) else s) for s in steps]

    def close(self) -> None:
        """Generate the requested tokens, then stop."""
        self._steps.close()


def _done(work: Callable[[], T]) -> Future[T]:
    """Return what work returned or raised."""
    done = Future[T]()
    try:
        done.set_result(run_contained(work))
    except Exception as e:
        done.set_exception(e)
    return done
