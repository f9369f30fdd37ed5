"""Micro-batching: requests that wait together are answered in one batch, by one thread.

The thread takes the requests that are in the queue, so a single request does not wait; those that
arrive meanwhile form the next batch. A request is never split: one generation answers all of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from redhost_serve.threads import WorkError, run_contained

__all__ = ["Batcher", "FullError"]

log = logging.getLogger("redhost.serve")

Q = TypeVar("Q")
"""An item of a request: a text, or a text with options."""
A = TypeVar("A")
"""Its answer."""


class FullError(Exception):
    """The queue is full."""


@dataclass(frozen=True, eq=False)
class _Request(Generic[Q, A]):
    texts: Sequence[Q]
    answer: Future[list[A]] = field(default_factory=Future)


class Batcher(Generic[Q, A]):
    """One thread, one bounded queue.

    Args:
        predict: Answers texts, with one generation.
        queue: Maximum number of waiting requests.
        texts: Maximum number of texts in a batch, unless one request has more.
        wait: Seconds for which a batch that is not full waits for more.
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

    @property
    def working(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

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
        """Answer the waiting requests, then stop; no new ones are accepted."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        try:
            while batch := self._take():
                self._answer(batch)
                del batch  # otherwise the last answers stay in memory until the next request
        except BaseException:  # of this class's own code: what `predict` raises is contained
            log.critical("a worker thread ended; restart the server", exc_info=True)
        finally:  # without this thread nobody would answer what waits
            with self._changed:
                self._closed = True
                for request in self._waiting:
                    if request.answer.set_running_or_notify_cancel():
                        request.answer.set_exception(WorkError("the thread ended"))
                self._waiting.clear()

    def _take(self) -> list[_Request[Q, A]]:
        """Wait for requests; return a batch, empty if the queue is closed and empty."""
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
        """Take a batch out of the queue; drop requests whose client disconnected."""
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
        """Answer a batch; if it fails, answer each request alone, since one may be the cause."""
        try:
            answers = iter(
                run_contained(lambda: self._predict([t for r in batch for t in r.texts]))
            )
        except Exception as e:
            if len(batch) == 1:
                batch[0].answer.set_exception(e)
                return
            for request in batch:
                self._answer([request])
            return
        for request in batch:
            request.answer.set_result([next(answers) for _ in request.texts])

    def _predict(self, texts: Sequence[Q]) -> Sequence[A]:
        self.observe(len(texts))
        answers = self.predict(texts)
        if len(answers) != len(texts):
            raise WorkError(f"{len(answers)} answers to {len(texts)} texts")
        return answers
