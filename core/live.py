"""A host that answers while generations change.

One pointer names the generation that answers. A request reads it once, so one generation alone
answers it; a swap does everything that can fail before it moves the pointer.
"""

from __future__ import annotations

import importlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self, Unpack

import msgspec

from ..registry.errors import (
    CompositionError,
    MissingError,
    RedhostError,
    StaleGenerationError,
    StoreError,
    SwapInProgressError,
)
from ..registry.home.locks import Leases
from ..registry.home.questions import nothing_composed, question_of
from .backbones.tokens import start_of
from .composition.options import RecomposeKeywords
from .composition.select import ExpertSource
from .evaluation.replay import replay_gates
from .host import Host
from .model.composed import Answer, ComposedModel, Observe
from .model.decode import session_of
from .model.route import Route
from .model.stored import GenerationLoader
from .plugins.manager import Plugins
from .receipt import Receipt
from .session import Session

log = logging.getLogger("redhost")

PROBES = 1
"""Texts a generation answers before it is served; every pass takes time from requests."""


class Live:
    """Answers texts from many threads, and changes generations without a pause.

    It starts with the current generation, or with none where nothing is composed.

    Args:
        session: Its home, which is followed, and what compositions are made with.
        beside: A live host of another question, whose backbones it shares.
    """

    def __init__(self, session: Session, *, beside: Live | None = None) -> None:
        self.host = Host(session)
        self._loader: GenerationLoader = GenerationLoader(
            session.home,
            plugins=session.plugins,
            device=session.device,
            backbones=None if beside is None else beside._loader.backbones,
        )
        self._serving: ComposedModel | None = None
        self._served: list[weakref.ref[ComposedModel]] = []
        self._prepared: weakref.WeakValueDictionary[int, ComposedModel] = (
            weakref.WeakValueDictionary()
        )
        self._turn = threading.Lock()
        if session.generations.current() is not None:
            self.swap()

    @classmethod
    def open(
        cls,
        home: str | Path | None = None,
        *,
        question: str | None = None,
        backbone: str | None = None,
        device: str | None = None,
        plugins: Plugins | None = None,
    ) -> Self:
        """Open a live host on a home folder; the arguments are those of `Host.open`."""
        host = Host.open(home, question=question, backbone=backbone, device=device, plugins=plugins)
        return cls(host.session)

    def of_question(self, name: str) -> Self:
        """Return a live host of a named question in this home; it shares backbones with this one.

        Raises:
            RedhostError: If its current generation cannot be served.
        """
        return type(self)(self.host.of_question(name).session, beside=self)

    def __repr__(self) -> str:
        return f"Live(home={str(self.host.home)!r}, generation={self.generation})"

    # -- answering ----------------------------------------------------------------------------

    @property
    def generation(self) -> int | None:
        """The number of the generation that answers now."""
        serving = self._serving
        return None if serving is None else serving.generation

    @property
    def composed(self) -> ComposedModel:
        """The generation that answers now. Read it once and use what you got.

        Raises:
            MissingError: If none is served.
        """
        serving = self._serving
        if serving is None:
            raise MissingError(
                f"no generation of {self.host.home} is served",
                hint="Run 'redhost recompose', then swap to what it published.",
            )
        return serving

    def predict(
        self,
        texts: str | Iterable[str],
        *,
        sets: float | None = None,
        each: bool = False,
        observe: Callable[[ComposedModel], Observe | None] | None = None,
    ) -> list[Answer]:
        """Answer texts as `Host.predict` does, all with one generation, which answers name.

        A live host answers its own question; `of_question` gives those of others.

        Args:
            texts: As for `Host.predict`, like the next two.
            sets: The level of label sets.
            each: Whether every expert answers for itself as well.
            observe: Returns, for the generation that answers, what is called with what it read.
        """
        model = self.composed
        seen = None if observe is None else observe(model)
        return model.answer(texts, sets=sets, each=each, observe=seen)

    def route(self, texts: str | Iterable[str]) -> list[Route]:
        """Say whose texts are as `Host.route` does, all by one generation, which it names."""
        return self.composed.chooser.route(texts)

    def alive(self) -> tuple[int, ...]:
        """Return the numbers of the served generations still in memory, the one served included.

        An old one goes when its last request is answered.
        """
        held = [model for ref in self._served if (model := ref()) is not None]
        return tuple(c.generation for c in held if c.generation is not None)

    # -- changing -----------------------------------------------------------------------------

    def swap(self, number: int | None = None, *, expected: int | None = None) -> int:
        """Verify, load and warm up a generation, then answer with it.

        When this returns, every later request is answered by it, and it is the home's current
        one. When it raises, the old one answers as before.

        Args:
            number: Which one; None is the home's current one.
            expected: The generation the caller believes is served; None for whichever it is.

        Returns:
            The number of the generation that answers now.

        Raises:
            SwapInProgressError: If another swap is under way.
            StaleGenerationError: If another generation than `expected` is served.
            RedhostError: If the generation cannot be served; the message says why.
        """
        with self._alone(expected):
            return self._publish(number)

    def prepare(self, number: int, *, replay: bool = False) -> ComposedModel:
        """Verify, load and warm up a generation, and leave the one that answers where it is.

        While the result is held, a swap to this generation has nothing left to do but to move the
        pointer, and gc leaves it on disk.

        Args:
            number: Which one.
            replay: Whether it also answers the gate rows of its cards, and is refused if fewer are
                right than its receipt says.

        Raises:
            RedhostError: If the generation cannot be served; the message says why.
        """
        model = self._leased(number)
        if replay:
            receipt = self.host.generations.file(number, "receipt.json")
            replay_gates(model, msgspec.json.decode(receipt, type=Receipt).accuracy)
        self._prepared[number] = model
        return model

    def rollback(self, *, expected: int | None = None) -> int:
        """Swap to the parent of the generation that answers; nothing is trained.

        Raises:
            MissingError: If it has no parent, or none is served.
            RedhostError: As `swap` does.
        """
        with self._alone(expected):
            number = self.composed.generation
            parent = None if number is None else self.host.generations.load(number).parent
            if parent is None:
                raise MissingError(f"generation {number} has no parent to go back to")
            return self._publish(parent)

    def refresh(self) -> int | None:
        """Follow the home's current generation, which another process may have changed.

        Returns:
            The number of the generation that answers now, None where nothing is composed.
        """
        current = self.host.generations.current()
        return current if current in {None, self.generation} else self.swap()

    def unload(self, *, expected: int | None = None) -> None:
        """Stop answering, until the next swap; the home is left as it is."""
        with self._alone(expected):
            self._serving = None

    def attach(
        self,
        source: ExpertSource,
        *,
        expected: int | None = None,
        **keywords: Unpack[RecomposeKeywords],
    ) -> Receipt:
        """Compose one expert more, as `Host.attach` does, then answer with that.

        Args:
            source: What joins; it may have been installed a moment ago.
            expected: As for `swap`.
            keywords: See `RecomposeKeywords`.

        Raises:
            RedhostError: As `swap` and `Host.attach` do; the old generation goes on.
        """
        return self._change(lambda: self.host.attach(source, **keywords), expected)

    def detach(
        self, expert_id: str, *, expected: int | None = None, **keywords: Unpack[RecomposeKeywords]
    ) -> Receipt:
        """Compose without an expert, as `Host.detach` does, then answer with that; see `attach`."""
        return self._change(lambda: self.host.detach(expert_id, **keywords), expected)

    def replace(
        self,
        expert_id: str,
        source: ExpertSource,
        *,
        expected: int | None = None,
        **keywords: Unpack[RecomposeKeywords],
    ) -> Receipt:
        """Exchange an expert, as `Host.replace` does, then answer with that; see `attach`."""
        return self._change(lambda: self.host.replace(expert_id, source, **keywords), expected)

    def _change(self, compose: Callable[[], Receipt], expected: int | None) -> Receipt:
        """Publish a changed composition and serve it, or go back; nobody else writes meanwhile."""
        with self._alone(expected), self.host.generations.writer():
            before = self.host.generations.current()
            if self.generation not in {None, before}:
                raise StaleGenerationError(
                    "another process has changed the home since",
                    expected=f"generation {self.generation}",
                    found=f"generation {before}",
                    hint="Swap to it first, then try again.",
                )
            importlib.invalidate_caches()
            receipt = compose()
            try:
                self._publish(receipt.generation)
            except BaseException:
                if before is not None:
                    self.host.rollback(before)
                raise
        return receipt

    @contextmanager
    def _alone(self, expected: int | None) -> Iterator[None]:
        """Let one change happen at a time, and only from where its caller thinks we are."""
        if not self._turn.acquire(blocking=False):
            raise SwapInProgressError("another swap is under way", hint="Try again later.")
        try:
            if expected not in {None, self.generation}:
                raise StaleGenerationError(
                    "another generation is served than was expected",
                    expected=f"generation {expected}",
                    found=f"generation {self.generation}",
                    hint="Look again before you change it.",
                )
            yield
        finally:
            self._turn.release()

    def _publish(self, number: int | None) -> int:
        """Do everything that can fail, then move the pointer."""
        current = self.host.generations.current()
        number = current if number is None else number
        if number is None:
            raise nothing_composed(self.host.home)
        model = self._prepared.pop(number, None) or self._leased(number)
        if number != current:
            self.host.rollback(number)  # the disk first: a restart then serves the same
        self._move(model)
        question = question_of(self.host.home)
        who = f"question {question!r}: " if question else ""
        log.info("%sgeneration %s is served", who, number)
        return number

    def _leased(self, number: int) -> ComposedModel:
        """Return a generation that answers, and that stays on disk as long as it is held."""
        lease = ExitStack()
        try:
            lease.enter_context(Leases(self.host.home).hold(number))
        except StoreError as e:  # a home that cannot be written cannot be cleaned up either
            log.info("generation %s has no lease: %s", number, e.reason)
        try:
            model = self._ready(number)
        except BaseException:
            lease.close()
            raise
        weakref.finalize(model, lease.close)  # held as long as a request is answered by it
        return model

    def _move(self, model: ComposedModel) -> None:
        """Serve a generation from the next request on."""
        self._serving = model
        self._served = [r for r in self._served if r() is not None] + [weakref.ref(model)]

    def _ready(self, number: int) -> ComposedModel:
        """Return a generation that was verified, loaded, and has answered."""
        try:
            model = self._loader.read(number)
            _warm_up(model)
        except RedhostError:
            raise
        except Exception as e:
            message = " ".join(str(e).split())  # torch's messages run over several lines
            raise CompositionError(
                f"generation {number} cannot be served", found=f"{type(e).__name__}: {message}"
            ) from e
        return model


def _warm_up(model: ComposedModel) -> None:
    """Let a generation answer a few texts of its own, or tell a first token.

    Raises:
        CompositionError: If what it answers is no number.
    """
    trunk, rows = model.backbone.trunk, model.evaluation or model.background
    if model.backbone.task.head.vocabulary:
        p, alpha = session_of(model, ids := [start_of(trunk)]).step(ids)
        found = {"": [*p.tolist(), *alpha.tolist()]}
    else:
        texts = [row.text for row in rows[:PROBES]] or ["warm-up"]
        answers = model.answer(texts)
        found = {a.input: [a.probability, a.value, *a.weights.values()] for a in answers}
    for text, numbers in found.items():
        if wrong := [x for x in numbers if x is not None and not math.isfinite(x)]:
            raise CompositionError(
                f"generation {model.generation} answers {text!r} with no number",
                expected="finite probabilities and weights",
                found=str(wrong[0]),
                hint="Compose anew with 'redhost recompose'.",
            )
