"""A host that answers requests while generations change.

One pointer refers to the generation that answers. A request reads it once, so a single generation
answers the whole request. A swap finishes everything that can fail before it moves the pointer.
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
    ContractError,
    IntegrityError,
    MissingError,
    PluginError,
    RedhostError,
    StaleGenerationError,
    StoreError,
    SwapInProgressError,
)
from ..registry.home.locks import Leases
from ..registry.home.questions import nothing_composed, question_of
from .composition.options import RecomposeKeywords
from .composition.select import ExpertSource
from .evaluation.replay import replay_gates
from .host import Host
from .model.composed import Answer, ComposedModel, Observe
from .model.route import Route
from .model.stored import GenerationLoader
from .plugins.manager import Plugins
from .receipt import Receipt
from .session import Session

log = logging.getLogger("redhost")

PROBES = 1
"""Texts that a generation answers before it is served; each pass takes time from requests."""


class Live:
    """Answers texts from many threads, and swaps generations without a pause.

    It starts with the current generation, or with none if nothing is composed.

    Args:
        session: The home to follow, and the plugins and settings that compositions are made with.
        beside: A live host of another question, whose backbones this one shares.
    """

    def __init__(self, session: Session, *, shares_with: Live | None = None) -> None:
        self.host = Host(session)
        self._loader: GenerationLoader = GenerationLoader(
            session.generations,
            plugins=session.plugins,
            device=session.device,
            backbones=None if shares_with is None else shares_with._loader.backbones,
        )
        self._serving: ComposedModel | None = None
        self._served: list[weakref.ref[ComposedModel]] = []
        self._prepared: weakref.WeakValueDictionary[int, ComposedModel] = (
            weakref.WeakValueDictionary()
        )
        self._turn = threading.Lock()
        if session.generations.current() is not None and self._refusal() is None:
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
        return type(self)(self.host.of_question(name).session, shares_with=self)

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
        """The generation that answers now. Read it once, and use that object throughout.

        Raises:
            MissingError: If none is served.
            ContractError: If that is because of what is revoked.
        """
        serving = self._serving
        if serving is None:
            if refusal := self._refusal():
                raise refusal
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

        A live host answers only its own question; `of_question` returns the hosts of others.

        Args:
            texts: As for `Host.predict`, like the next two.
            sets: The level of label sets.
            each: Whether every expert also answers on its own.
            observe: Returns, for the answering generation, a function to call with its features
                and weights.
        """
        model = self.composed
        seen = None if observe is None else observe(model)
        return model.answer(texts, sets=sets, each=each, observe=seen)

    def route(self, texts: str | Iterable[str]) -> list[Route]:
        """Route texts as `Host.route` does, all with one generation, which routes name."""
        return self.composed.chooser.route(texts)

    def alive(self) -> tuple[int, ...]:
        """Return the numbers of the served generations still in memory, the current one included.

        An old generation is freed when its last request is answered.
        """
        held = [model for ref in self._served if (model := ref()) is not None]
        return tuple(c.generation for c in held if c.generation is not None)

    # -- changing -----------------------------------------------------------------------------

    def swap(self, number: int | None = None, *, expected: int | None = None) -> int:
        """Verify, load and warm up a generation, then answer with it.

        On return, every later request is answered by it, and it is the home's current generation.
        On an exception, the old one answers as before.

        Args:
            number: The generation; None is the home's current one.
            expected: The generation that the caller assumes is served; None for any.

        Returns:
            The number of the generation that answers now.

        Raises:
            SwapInProgressError: If another swap is under way.
            StaleGenerationError: If another generation than `expected` is served.
            RedhostError: If the generation cannot be served; the message explains why.
        """
        with self._alone(expected):
            return self._publish(number)

    def prepare(self, number: int, *, replay: bool = False) -> ComposedModel:
        """Verify, load and warm up a generation without serving it.

        While the result is referenced, a swap to this generation only moves the pointer, and gc
        keeps it on disk.

        Args:
            number: The generation.
            replay: Whether it also answers the gate rows of its cards, and is refused if fewer
                answers are right than its receipt states.

        Raises:
            RedhostError: If the generation cannot be served; the message explains why.
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
            RedhostError: As for `swap`.
        """
        with self._alone(expected):
            number = self.composed.generation
            parent = None if number is None else self.host.generations.load(number).parent
            if parent is None:
                raise MissingError(f"generation {number} has no parent to go back to")
            return self._publish(parent)

    def refresh(self) -> int | None:
        """Follow the home, which another process may have changed, and leave what is revoked.

        Returns:
            The number of the generation that answers now, None if nothing does.
        """
        current = self.host.generations.current()
        if self.recall() is not None or current in {None, self.generation}:
            return self.generation
        return self.swap()

    def recall(self) -> RedhostError | None:
        """Stop answering with what is revoked: go to the newest generation without it, or to none.

        Returns:
            Why the generation that was served, or is the home's current one, may not answer; None
            if it may, and nothing has changed.

        Raises:
            SwapInProgressError: If another swap is under way.
            StoreError: If it is not known what is revoked; what is served is unchanged.
        """
        refusal, generations = self._refusal(), self.host.generations
        if refusal is None:
            return None
        for record in reversed(generations.history()):
            if generations.refusal(record) is None:
                try:
                    self.swap(record.number)
                except MissingError:  # such as a writer that works long: do not wait for it again
                    break
                except (CompositionError, ContractError, IntegrityError, PluginError):
                    continue  # an older one may be whole
                return refusal
        self.unload()
        return refusal

    def _refusal(self) -> RedhostError | None:
        """Return why the generation that is served, or else is current, may not answer."""
        generations, number = self.host.generations, self.generation
        number = generations.current() if number is None else number
        return None if number is None else generations.refusal(generations.load(number))

    def unload(self, *, expected: int | None = None) -> None:
        """Stop answering until the next swap; the home does not change."""
        with self._alone(expected):
            self._serving = None

    def attach(
        self,
        source: ExpertSource,
        *,
        expected: int | None = None,
        **keywords: Unpack[RecomposeKeywords],
    ) -> Receipt:
        """Compose one more expert, as `Host.attach` does, then answer with the result.

        Args:
            source: The expert to add; it may have been installed a moment ago.
            expected: As for `swap`.
            keywords: See `RecomposeKeywords`.

        Raises:
            RedhostError: As for `swap` and `Host.attach`; the old generation still answers.
        """
        return self._change(lambda: self.host.attach(source, **keywords), expected)

    def detach(
        self, expert_id: str, *, expected: int | None = None, **keywords: Unpack[RecomposeKeywords]
    ) -> Receipt:
        """Compose without an expert, as `Host.detach` does, then serve the result; see `attach`."""
        return self._change(lambda: self.host.detach(expert_id, **keywords), expected)

    def replace(
        self,
        expert_id: str,
        source: ExpertSource,
        *,
        expected: int | None = None,
        **keywords: Unpack[RecomposeKeywords],
    ) -> Receipt:
        """Exchange an expert, as `Host.replace` does, then serve the result; see `attach`."""
        return self._change(lambda: self.host.replace(expert_id, source, **keywords), expected)

    def _change(self, compose: Callable[[], Receipt], expected: int | None) -> Receipt:
        """Publish a changed composition and serve it, or roll back; no other writer intervenes."""
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
                    self.host.generations.rollback(before)
                raise
        return receipt

    @contextmanager
    def _alone(self, expected: int | None) -> Iterator[None]:
        """Allow one change at a time, and only from the generation that its caller expects."""
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
        """Finish everything that can fail, then move the pointer."""
        current = self.host.generations.current()
        number = current if number is None else number
        if number is None:
            raise nothing_composed(self.host.home)
        model = self._prepared.pop(number, None) or self._leased(number)
        if number != current:
            # The disk first: after a restart the same one is served.
            self.host.generations.rollback(number)
        self._move(model)
        question = question_of(self.host.home)
        prefix = f"question {question!r}: " if question else ""
        log.info("%sgeneration %s is served", prefix, number)
        return number

    def _leased(self, number: int) -> ComposedModel:
        """Return a verified generation that stays on disk as long as it is referenced."""
        lease = ExitStack()
        try:
            lease.enter_context(Leases(self.host.home).hold(number))
        except StoreError as e:  # in a read-only home, gc cannot remove it either
            log.info("generation %s has no lease: %s", number, e.reason)
        try:
            model = self._ready(number)
        except BaseException:
            lease.close()
            raise
        weakref.finalize(model, lease.close)  # at the earliest when its last request is answered
        return model

    def _move(self, model: ComposedModel) -> None:
        """Serve a generation from the next request on."""
        self._serving = model
        self._served = [r for r in self._served if r() is not None] + [weakref.ref(model)]

    def _ready(self, number: int) -> ComposedModel:
        """Return a generation that is verified, loaded and warmed up."""
        try:
            model = self._loader.read(number)
            _warm_up(model)
        except RedhostError:
            raise
        except Exception as e:
            message = " ".join(str(e).split())  # torch's messages have several lines
            raise CompositionError(
                f"generation {number} cannot be served", found=f"{type(e).__name__}: {message}"
            ) from e
        return model


def _warm_up(model: ComposedModel) -> None:
    """Let a generation answer a few texts of its own, or predict what its unit predicts first.

    Raises:
        CompositionError: If its output is not finite.
    """
    first = model.backbone.task.unit.first_output(model)
    for text, numbers in (_first_answers(model) if first is None else first).items():
        if infinite := [x for x in numbers if x is not None and not math.isfinite(x)]:
            raise CompositionError(
                f"generation {model.generation} answers {text!r} with no number",
                expected="finite probabilities and weights",
                found=str(infinite[0]),
                hint="Compose anew with 'redhost recompose'.",
            )


def _first_answers(model: ComposedModel) -> dict[str, list[float | None]]:
    """Return the numbers of answers to a few texts of a generation's own, by text."""
    rows = model.evaluation or model.background
    answers = model.answer([row.text for row in rows[:PROBES]] or ["warm-up"])
    return {a.input: [a.probability, a.value, *a.weights.values()] for a in answers}
