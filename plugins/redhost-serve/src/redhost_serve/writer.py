"""Text generation: one thread generates a token of each text in turn, so all make progress."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

from redhost_serve.batcher import Batcher, FullError

__all__ = ["Writer"]

T = TypeVar("T")


class Writer:
    """One thread, and a bounded number of concurrent texts.

    Args:
        queue: Maximum number of concurrent texts.
    """

    def __init__(self, *, queue: int) -> None:
        self.queue, self.under_way = queue, 0
        self._steps: Batcher[Callable[[], Any], Any] = Batcher(
            lambda steps: [step() for step in steps], queue=sys.maxsize, texts=1
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
        self.under_way += 1
        try:
            tokens = await self._call(begin)
            yield None
            while (token := await self._call(partial(next, tokens, None))) is not None:
                yield token
        finally:
            self.under_way -= 1

    async def _call(self, step: Callable[[], T]) -> T:
        [result] = await self._steps.ask([step])
        return cast("T", result)

    def close(self) -> None:
        """Generate the requested tokens, then stop."""
        self._steps.close()
