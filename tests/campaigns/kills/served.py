"""A home whose server is killed during swaps, and the conditions it must meet afterwards."""

from __future__ import annotations

import http.client
import itertools
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from redhost_serve.client import Client, Reply
from redhost_serve.process import compose_home, serving
from redhost_serve.server import running

import redhost
from redhost.testing.fault_injection import Kill

__all__ = ["ServedHome", "ask_forked", "ask_process", "kill_processes"]

TEXTS = ("What is 37 plus 12?", "What is 4 plus 5?", "nothing of the kind")
OLD, NEW = 3, 1
"""The generation that is served first, and the one that is swapped to; 2 is never served."""

ServedAnswers = tuple[int, list[str], list[float], list[float]]
"""A generation, its labels, probabilities and weights, bit for bit."""


@dataclass(eq=False)
class ServedHome:
    """A home that is restored after every kill.

    Attributes:
        folder: An empty folder.
        ask: Returns the answer of a server newly started on a home.
        swapped: Number of kills after which the generation swapped to was current.
    """

    folder: Path
    ask: Callable[[Path], ServedAnswers]
    swapped: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def __post_init__(self) -> None:
        """Compose generations 1, 2 and 3, and store the answers of each."""
        self.home, self.whole = self.folder / "home", self.folder / "whole"
        self.secret = self.folder / "token"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.secret.touch(0o600)
        self.secret.write_text(self.token, "utf-8")
        host = compose_home(self.whole)
        self.known: dict[int, ServedAnswers] = {}
        for number in (NEW, OLD):  # OLD stays current
            host.rollback(number)
            self.known[number] = _predicted(host)
        if self.known[NEW][1:] == self.known[OLD][1:]:
            raise redhost.errors.CompositionError("two generations that answer alike")
        self.restore()

    def restore(self) -> None:
        """Restore the home to its state before any kill."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.whole, self.home)

    def swap(self) -> None:
        """Serve over HTTP and request one swap."""
        self._serve((NEW,))

    def swap_on(self) -> None:
        """Serve over HTTP and request a series of swaps."""
        self._serve(itertools.cycle((NEW, OLD)))

    def check(self) -> str | None:
        """Return the problems after a kill, then restore the home."""
        try:
            found = self._problem()
        except Exception as e:  # any exception is one that a user would get
            found = repr(e)
        self.restore()
        return found

    def _serve(self, numbers: Iterable[int]) -> None:
        live = redhost.Live.open(self.home, plugins=redhost.plugins.Plugins(()))
        with (
            running(live, token=self.token) as (url, _),
            Client(url, token=self.token) as client,
        ):
            for number in numbers:
                _require(client.swap(number))

    def _problem(self) -> str | None:
        host = redhost.Host.open(self.home, plugins=redhost.plugins.Plugins(()))
        current = host.generations.current()
        if current not in self.known:
            return f"generation {current} is current, neither {OLD} nor {NEW}"
        if (answers := _predicted(host)) != self.known[current]:
            return f"generation {current} answers {answers}, before it was {self.known[current]}"
        if (fresh := self.ask(self.home)) != answers:
            return f"a fresh server answers {fresh}, Host.predict {answers}"
        self.swapped += current == NEW
        return _left_over(host, current)


def ask_forked(home: Path) -> ServedAnswers:
    """Return the answer of a server that is started by a fork of this process."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(home, send))
    child.start()
    send.close()
    try:
        answers: ServedAnswers = receive.recv()
    except EOFError as e:
        raise redhost.MissingError("a fresh server does not answer") from e
    finally:
        child.join()
    return answers


def ask_process(home: Path) -> ServedAnswers:
    """Return the answer of a newly started `redhost serve`."""
    with serving(home) as process, Client(process.url) as client:
        return _answers_in(client.infer(TEXTS))


def kill_processes(home: ServedHome, *, count: int, longest: float, seed: int) -> Iterator[Kill]:
    """Start `redhost serve` over and over, and kill each at a random moment of its swaps.

    Args:
        home: The home that is served, and checked after each kill.
        count: Number of kills.
        longest: Seconds from the first swap until the latest kill.
        seed: Random seed of the moments.

    Yields:
        Each kill, as it happens.
    """
    moments = random.Random(seed)
    for _ in range(count):
        seconds = moments.uniform(0.0, longest)
        with (
            serving(home.home, "--admin-token", str(home.secret)) as process,
            Client(process.url, token=home.token) as client,
        ):
            killer = threading.Timer(seconds, os.kill, (process.pid, signal.SIGKILL))
            killer.start()
            with suppress(OSError, http.client.HTTPException):  # how its end is met
                for number in itertools.cycle((NEW, OLD)):
                    _require(client.swap(number))
            killer.join()
        yield Kill(f"redhost serve after {seconds:.3f} s", home.check())


def _answer(home: Path, send: Connection) -> None:
    live = redhost.Live.open(home, plugins=redhost.plugins.Plugins(()))
    with running(live) as (url, _), Client(url) as client:
        send.send(_answers_in(client.infer(TEXTS)))


def _predicted(host: redhost.Host) -> ServedAnswers:
    answers = host.predict(TEXTS)
    return (
        answers[0].generation or 0,
        [a.label for a in answers],
        [a.probability for a in answers if a.probability is not None],
        [w for a in answers for w in a.weights.values()],
    )


def _answers_in(reply: Reply) -> ServedAnswers:
    answered = _require(reply)
    output = answered.output
    return answered.generation, output("label"), output("probability"), output("weights")


def _require(reply: Reply) -> Reply:
    if reply.status != 200:
        raise redhost.errors.CompositionError(
            f"the server answers {reply.status}", found=str(reply.body)
        )
    return reply


def _left_over(host: redhost.Host, current: int) -> str | None:
    """Return what a dead server still keeps from garbage collection."""
    others = tuple(n for n in host.generations.numbers() if n != current)
    gone = host.generations.gc(1)
    if gone.generations != others or gone.held:
        return f"gc removed {gone.generations} of {others}; held: {gone.held}"
    leases = redhost.plugins.Leases(host.home).folder
    left = [*host.generations.leftovers(), *(p.name for p in leases.glob("*.json"))]
    return f"left over after gc: {left}" if left else None
