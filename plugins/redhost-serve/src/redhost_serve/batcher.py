"""Micro-batching: requests that wait together are answered together, by one thread.

The thread takes what is there, so one request alone is not kept waiting, and what comes meanwhile
is the next batch. A request is never split: one generation answers all of it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Batcher", "FullError"]

Q = TypeVar("Q")
"""A text, or what stands for one."""
A = TypeVar("A")
"""What it is answered with."""


class FullError(Exception):
    """As many requests wait as may."""


@dataclass(frozen=True, eq=False)
class _Request(Generic[Q, A]):
    texts: Sequence[Q]
    answer: Future[list[A]] = field(default_factory=Future)


class Batcher(Generic[Q, A]):
    """One thread, one bounded queue.

    Args:
        predict: Answers texts, with one generation.
        queue: How many requests may wait.
        texts: Most texts of a batch, unless one request has more.
        wait: Seconds a batch that is not full waits for more.
        observe: Called with the number of texts of every batch.
    """

    def __init__(
        self,
        predict: Callable[[Sequence[Q]], list[A]],
        *,
        queue: int,
        texts: int,
        wait: float = 0.0,
        observe: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.predict, self.queue, self.texts, self.wait = predict, queue, texts, wait
        self.observe = observe
        self._waiting: deque[_Request[Q, A]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="redhost-batcher", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    async def ask(self, texts: Sequence[Q]) -> list[A]:
        """Wait for the answers to the texts of one request.

        Raises:
            FullError: If the queue is full, or closed.
        """
        request = _Request[Q, A](texts)
        with self._changed:
            if self._closed or len(self._waiting) >= self.queue:
                raise FullError
            self._waiting.append(request)
            self._changed.notify()
        return await asyncio.wrap_future(request.answer)

    def close(self) -> None:
        """Answer what waits, then stop; nothing more is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._take():
            self.observe(sum(len(r.texts) for r in batch))
            self._answer(batch)
            del batch  # or the last answers live until the next request

    def _take(self) -> list[_Request[Q, A]]:
        """Wait for requests; return those of a batch, none when the queue is closed and empty."""
        with self._changed:
            while True:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                end = time.monotonic() + self.wait
                while not self._full() and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
                batch = self._pick()
                if batch or self._closed:
                    return batch

    def _pick(self) -> list[_Request[Q, A]]:
        """Take the requests of a batch out of the queue; those whose client hung up are dropped."""
        batch: list[_Request[Q, A]] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].texts) <= self.texts):
            request = self._waiting.popleft()
            if request.answer.set_running_or_notify_cancel():
                batch.append(request)
                size += len(request.texts)
        return batch

    def _full(self) -> bool:
        return self._closed or sum(len(r.texts) for r in self._waiting) >= self.texts

    def _answer(self, batch: Sequence[_Request[Q, A]]) -> None:
        """Answer a batch; when it fails, each of its requests alone, for it may be one's fault."""
        try:
            answers = iter(self.predict([t for r in batch for t in r.texts]))
        except Exception as e:
            if len(batch) == 1:
                # asyncio would drop a StopIteration, and its request would wait for ever.
                error = RuntimeError(repr(e)) if isinstance(e, StopIteration) else e
                batch[0].answer.set_exception(error)
                return
            for request in batch:
                self._answer([request])
            return
        for request in batch:
            request.answer.set_result([next(answers) for _ in request.texts])
