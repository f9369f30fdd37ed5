"""The service behind the routes: a live host, its batchers, and the status of both."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

import redhost
from redhost_serve.batcher import Batcher, FullError
from redhost_serve.chat_process import ChatProcess
from redhost_serve.drift import Drift, RecentMoments
from redhost_serve.embedding import Embedding, embed
from redhost_serve.live_shares import RecentWeights, Saver, expected_shares
from redhost_serve.memory import give_back
from redhost_serve.metrics import Metrics
from redhost_serve.problems import HttpProblem, problem_of
from redhost_serve.threads import error_name, run_contained
from redhost_serve.tracing import note_answers
from redhost_serve.traffic import LastMinute
from redhost_serve.trial import Labelled, Question, ScoredAnswer, Trial, score
from redhost_serve.wire import TrafficReply, model_name
from redhost_serve.writer import Writer

if TYPE_CHECKING:
    from redhost_generate import Grammar, Sampling, Token

__all__ = ["Candidate", "Options", "Recalled", "Service"]

log = logging.getLogger("redhost.serve")

Q = TypeVar("Q")
A = TypeVar("A")

Conversation = tuple[Any, Sequence[Mapping[str, str]]]
"""The tokenizer that has the chat template, and the messages."""

SHOWN = 20
"""Number of generations in the listing."""

REMEMBERED = 2.0
"""Seconds for which a listing of the installed experts is cached."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a service.

    Attributes:
        queue: Maximum number of waiting requests, and of texts that are generated concurrently.
        batch: Maximum number of texts in a batch; 1 answers one request at a time.
        wait: Seconds a batch waits for more requests.
        body: Maximum number of bytes in a request's body.
        seconds: Seconds in which a client has to send the body.
        hosts: Accepted Host names, in addition to loopback and the address of the connection.
        origins: Origins of web pages that may read answers; ``*`` for all.
        root_path: The prefix of all paths behind a proxy.
    """

    queue: int = 256
    batch: int = 64
    wait: float = 0.0
    body: int = 2**20
    seconds: float = 10.0
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    root_path: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of the last change of the environment that `--watch` detected.

    Attributes:
        state: ``checking``, ``published``, ``refused`` or ``unchanged``.
        reason: The reason, if it was refused or there was nothing to publish.
        generation: The generation it was published as.
    """

    state: str
    reason: str | None = None
    generation: int | None = None


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that is no longer served, because a part of it is revoked.

    Attributes:
        generation: Its number.
        reason: What is revoked, and why.
    """

    generation: int | None
    reason: str


@dataclass(eq=False)
class Service:
    """The state and operations behind the routes, for one question.

    Attributes:
        live: The live host.
        options: The service's options.
        draining: Whether it is about to stop: it answers, but is not ready.
        candidate: Outcome of the last change that `--watch` detected.
        recalled: What it left because it is revoked; None once a newer one is served.
        listing: The installed experts as listed by a fresh interpreter, if `--watch` ran one.
        trial: The canary, while there is one.
        follows: Returns the follower's latest report; None if no fleet is followed.
        named: The services of the named questions of the same home, by name.
        helpers: Further threads that the server needs: those of `--watch` and `--follow`.
    """

    live: redhost.Live
    options: Options = field(default_factory=Options)
    draining: bool = False
    candidate: Candidate | None = None
    recalled: Recalled | None = None
    listing: Sequence[dict[str, Any]] | None = None
    trial: Trial | None = None
    follows: Callable[[], msgspec.Struct] | None = None
    named: dict[str, Service] = field(default_factory=dict)
    helpers: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the worker threads."""
        self.metrics = Metrics(
            generation=lambda: self.live.generation,
            alive=self.live.alive,
            waiting=lambda: sum(map(len, self._workers)),
            shares=lambda: self.shares()[0],
            drift=self.drift,
            question=self.question,
        )
        self.traffic = LastMinute()
        self.batcher = self._batcher(self._answer)
        self.labelled = self._batcher(self._score)
        self.by_expert = self._batcher(partial(self.live.predict, each=True))
        self.side_by_side = self._batcher(self._answer_all)
        self.embedding: Batcher[str, Embedding] = self._batcher(
            lambda texts: embed(self.live.composed, texts)
        )
        self.choosing = self._batcher(self.live.route)
        self.writer = Writer(
            queue=self.options.queue,
            texts=self.options.batch,
            read_batch=lambda texts: _generating().read_batch(texts) if texts else (),
        )
        self._chats = ChatProcess()
        self.conversations: Batcher[Conversation, str] = Batcher(
            lambda chats: [self._chats.render(*chat) for chat in chats],
            queue=self.options.queue,
            texts=1,
        )
        self._workers: tuple[Batcher[Any, Any] | Writer, ...] = (
            self.batcher,
            self.labelled,
            self.by_expert,
            self.side_by_side,
            self.embedding,
            self.choosing,
            self.writer,
            self.conversations,
        )
        self._recent, self._expected = RecentWeights(), dict[int, dict[str, float]]()
        self._moments = RecentMoments()
        self._saver = Saver(self.home, self._live_shares)
        self._saver.start()
        self._looking = threading.Lock()
        self._looked: tuple[float, list[dict[str, Any]]] = (0.0, [])
        self._refused: dict[str, bytes | None] = {}
        self._finding = threading.Lock()
        self.find_questions()
        give_back()  # memory freed after loading the generation

    def _batcher(self, answer: Callable[[Sequence[Q]], list[A]]) -> Batcher[Q, A]:
        return Batcher(
            answer,
            queue=self.options.queue,
            texts=self.options.batch,
            wait=self.options.wait,
            observe=self.metrics.batch.observe,
        )

    @property
    def question(self) -> str | None:
        """The named question that it answers; None for the default question."""
        return self.live.host.question

    @property
    def model(self) -> str:
        """The name of the model that answers its question."""
        return model_name(self.question)

    @property
    def every(self) -> tuple[Service, ...]:
        """The services of all questions of the home, this one first."""
        return (self, *self.named.values())

    def find_questions(self) -> None:
        """Serve the named questions that were composed since the last call.

        A question that cannot be served does not block the others; it is retried when it changes.
        """
        host = self.live.host
        with self._finding:  # a second service of one question would never be closed
            for name in host.questions:
                pointer = host.of_question(name).generations.pointer()
                if name in self.named or self._refused.get(name) == pointer:
                    continue
                try:
                    live = self.live.of_question(name)
                    self.named[name] = run_contained(partial(Service, live, options=self.options))
                except Exception as e:  # of any package that it loads
                    self._refused[name] = pointer
                    log.warning("question %r is not served: %s", name, e)

    def of_model(self, name: str) -> Service:
        """Return the service whose model has a name.

        Raises:
            HttpProblem: 404, if there is none.
        """
        found = {service.model: service for service in self.every}
        if name not in found:
            raise HttpProblem(404, f"no such model here; there is {', '.join(found)}")
        return found[name]

    def of_question(self, name: str | None) -> Service:
        """Return the service of a question; raises like `of_model`."""
        return self.of_model(model_name(name))

    @property
    def working(self) -> bool:
        """Whether all its threads run; a thread that ended is replaced by a restart only."""
        alive = [thread.is_alive() for thread in (self._saver, *self.helpers)]
        return all(alive) and all(worker.working for worker in self._workers)

    @property
    def ready(self) -> bool:
        """Whether the server accepts new requests."""
        return not self.draining and self.live.generation is not None and self.working

    @property
    def home(self) -> Path:
        """The home that is served."""
        return self.live.host.home

    @property
    def composed(self) -> redhost.ComposedModel:
        """The generation that answers now; read it once per request, because a swap changes it.

        Raises:
            HttpProblem: 503, if none is served.
        """
        with self._problems():
            return self.live.composed

    async def ask(
        self, texts: Sequence[str], *, each: bool = False, headers: Mapping[str, str] | None = None
    ) -> list[redhost.Answer]:
        """Answer the texts of one request, all with one generation.

        Args:
            texts: The texts.
            each: Whether to return every expert's own answer as well; canaries never do.
            headers: The request's headers, which select whether a canary answers.

        Raises:
            HttpProblem: 503 if too many requests wait, nothing is served or the generation failed;
                400 for a text that cannot be read. The input is not echoed.
        """
        start = time.perf_counter()
        if each:
            answers = await self._ask(self.by_expert, texts)
        else:
            trial = self.trial
            canary = trial is not None and trial.chooses(headers or {}, texts[0])
            answers = await self._ask(self.batcher, [Question(text, canary) for text in texts])
        self._note(answers, seconds=time.perf_counter() - start)
        return answers

    def _note(self, answers: Sequence[redhost.Answer], *, seconds: float) -> None:
        """Count the answers to one request for this question."""
        self.metrics.answered(answers, seconds=seconds)
        self.traffic.answered(answers, seconds=seconds)
        note_answers(answers, question=self.question)
        if answers[0].generation == self.live.generation:
            self._recent.add(answers)

    async def ask_all(self, texts: Sequence[str]) -> list[redhost.Answer]:
        """Answer the texts of one request for every question, in one pass if possible.

        Raises:
            HttpProblem: As `ask` does.
        """
        start = time.perf_counter()
        answers = await self._ask(self.side_by_side, texts)
        seconds = time.perf_counter() - start
        if answers[0].generation is not None:
            self._note(answers, seconds=seconds)
        for name in answers[0].named:
            self.named[name]._note([a.named[name] for a in answers], seconds=seconds)
        return answers

    def _answer_all(self, texts: Sequence[str]) -> list[redhost.Answer]:
        serving = {x.question: x.live.composed for x in self.every if x.live.generation}
        observe = {
            name: self.of_question(name)._moments.observer(model) for name, model in serving.items()
        }
        default = serving.pop(self.question, None)
        named = {name: model for name, model in serving.items() if name is not None}
        return redhost.plugins.Questions(default=default, named=named).answer(
            texts, observe=observe
        )

    async def feedback(self, labelled: Sequence[Labelled]) -> list[tuple[ScoredAnswer, ...]]:
        """Score the generations against the right labels of texts.

        Returns:
            For each text the answer of production and, if there is one, of the canary.

        Raises:
            HttpProblem: As `ask` does; also 400 for a label outside the label space.
        """
        scored = await self._ask(self.labelled, labelled)
        for first, *_ in scored:
            right = "right" if first.right else "wrong"
            self.metrics.labelled.labels(str(first.answer.generation), right).inc()
        trial = self.trial
        if trial is not None:
            sides = (self.live.generation, trial.model.generation)
            if {tuple(x.answer.generation for x in row) for row in scored} == {sides}:
                trial.count_labelled(scored)
        return scored

    def _answer(self, questions: Sequence[Question]) -> list[redhost.Answer]:
        """Answer a batch with the served generation and the canary."""
        trial, model = self.trial, self.live.composed
        if trial is None or trial.model.generation == model.generation:
            texts = [q.text for q in questions]
            return self.live.predict(texts, observe=self._moments.observer)
        return trial.answer(model, questions, observe=self._moments.observer(model))

    def _score(self, labelled: Sequence[Labelled]) -> list[tuple[ScoredAnswer, ...]]:
        """Score labels with the served generation and with the canary."""
        trial, model = self.trial, self.live.composed
        if trial is None or trial.model.generation == model.generation:
            return score((model,), labelled)
        return score((model, trial.model), labelled)

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """Return the backbone's vectors of the texts of one request; no expert is run.

        Raises:
            HttpProblem: As `ask` does; also 400 if the backbone has no vector of a whole
                text.
        """
        return await self._ask(self.embedding, texts)

    async def route(self, texts: Sequence[str]) -> list[redhost.plugins.Route]:
        """Route the texts of one request with one generation; no expert is run.

        Raises:
            HttpProblem: As `ask` does; also 400 if the router needs the experts' outputs.
        """
        return await self._ask(self.choosing, texts)

    async def render(
        self, model: redhost.ComposedModel, messages: Sequence[Mapping[str, str]]
    ) -> str:
        """Return the prompt of a conversation, rendered by the backbone's own chat template.

        Raises:
            HttpProblem: As `ask` does; also 400 if the template refuses the messages, or needs more
                than its limits of time and memory.
        """
        [prompt] = await self._ask(self.conversations, [(model.backbone.trunk.tokenizer, messages)])
        return prompt

    async def generate(
        self,
        model: redhost.ComposedModel,
        prompt: str,
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        expert: str | None = None,
        sampling: Sampling | None = None,
        grammar: Grammar | None = None,
    ) -> AsyncGenerator[Token, None]:
        """Continue a prompt: return its tokens as they are generated, all by one generation.

        The text counts towards the limit on concurrent texts until it ends or is closed.

        Args:
            model: The generation; a swap does not affect this text.
            prompt: The text.
            max_tokens: As for `redhost_generate.generate`, like the rest.
            temperature: T.
            seed: Seed of the sampling.
            expert: The expert that continues the prompt alone.
            sampling: Limits on what is drawn, and penalties.
            grammar: The form of the text; None for any.

        Raises:
            HttpProblem: As `ask` does, here and while the tokens are read; also 400 if the
                backbone does not generate text, 404 if the expert is not composed.
        """
        tokens = self._written(
            lambda: _generating().generate(
                model,
                prompt,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                expert=expert,
                sampling=sampling,
                grammar=grammar,
            )
        )
        await anext(tokens)  # None: it has begun, so closing it ends it
        return cast("AsyncGenerator[Token, None]", tokens)

    async def _written(self, begin: Callable[[], Iterator[A]]) -> AsyncGenerator[A | None, None]:
        """Yield None when generation has started, then the tokens; raise errors as problems."""
        with self._problems():
            async with aclosing(self.writer.write(begin)) as tokens:
                async for token in tokens:
                    yield token

    async def _ask(self, batcher: Batcher[Q, A], texts: Sequence[Q]) -> list[A]:
        with self._problems():
            return await batcher.ask(texts)

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """Convert errors of the block into problems that a client may see."""
        try:
            yield
        except FullError:
            raise HttpProblem(
                503,
                "too many requests wait, or the server stops; try again",
                headers={"Retry-After": "1"},
            ) from None
        except HttpProblem:
            raise
        except redhost.errors.UnknownNameError as e:
            raise problem_of(e) from None
        except redhost.UsageError as e:
            raise HttpProblem(400, _reason(e)) from None
        except (redhost.MissingError, redhost.errors.ContractError) as e:  # nothing is served
            raise problem_of(e, otherwise=503) from None
        except Exception as e:
            log.exception("generation %s failed", self.live.generation)
            raise HttpProblem(503, f"the generation failed on this: {error_name(e)}") from None

    def change(self, how: Callable[[], object]) -> tuple[int | None, int | None]:
        """Change the generation and count the outcome.

        Returns:
            The generation served now, and the one served before.
        """
        before = self.live.generation
        try:
            how()
        except redhost.RedhostError as e:
            self.metrics.swaps.labels("refused").inc()
            log.warning("generation %s goes on: %s", self.live.generation, e)
            raise
        finally:
            give_back()
        self.metrics.swaps.labels("done").inc()
        return self.live.generation, before

    def shares(self) -> tuple[dict[str, float], dict[str, float], int]:
        """Return the experts' live shares, the shares that the router expects, and the text count.

        The dictionaries are empty if there are no texts yet.
        """
        number = self.live.generation
        if number is None:
            return {}, {}, 0
        if number not in self._expected:
            self._expected = {number: expected_shares(self.live.host, number)}
        prior = self._expected[number]
        shares, texts = self._recent.estimate(prior, generation=number)
        return shares, prior, texts

    def last_minute(self, question: str | None = None) -> TrafficReply:
        """Return a question's traffic of the last minute, by expert.

        Raises:
            HttpProblem: 404, if there is no such question.
        """
        service = self.of_question(question) if question else self
        return service.traffic.report(service.live.generation)

    def drift(self) -> dict[str, Drift]:
        """Return the distance of each expert's last texts from its card's rows."""
        return self._moments.drift()

    def _live_shares(self) -> redhost.plugins.LiveShares | None:
        """Return the live shares for `redhost recompose --prior live`."""
        number, (shares, _, texts) = self.live.generation, self.shares()
        if number is None or not shares:
            return None
        return redhost.plugins.LiveShares(generation=number, shares=shares, texts=texts)

    def experts(self) -> Sequence[dict[str, Any]]:
        """Return every installed expert of the question, as `redhost list-experts` shows it."""
        if self.listing is not None:
            return self._own(self.listing)
        with self._looking:
            when, found = self._looked
            if not when or time.monotonic() - when > REMEMBERED:
                importlib.invalidate_caches()
                found = self._own([dict(x.to_json()) for x in self.live.host.list_experts()])
                self._looked = (time.monotonic(), found)
        return found

    def _own(self, listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the experts that answer this question."""
        return [x for x in listed if x["question"] == self.question]

    def generations(self) -> list[dict[str, Any]]:
        """Return a summary of the last generations, the newest first."""
        serving, generations = self.live.generation, self.live.host.generations
        latest = []
        for number in reversed(generations.numbers()[-SHOWN:]):
            try:
                record = generations.load(number)
            except (redhost.errors.IntegrityError, redhost.errors.UnknownNameError):
                continue  # damage is reported when the generation is used
            receipt = self._receipt(number)
            latest.append(
                {
                    "number": record.number,
                    "parent": record.parent,
                    "created": record.created,
                    "serving": record.number == serving,
                    "backbone": record.backbone.id,
                    "experts": [m.id for m in record.experts],
                    "router": record.router.kind,
                    "accuracy": receipt.get("accuracy", {}).get("after", {}),
                    "rows": receipt.get("accuracy", {}).get("rows", {}),
                }
            )
        return latest

    def _receipt(self, number: int) -> dict[str, Any]:
        """Return a generation's receipt; empty if it is damaged."""
        try:
            found: dict[str, Any] = msgspec.json.decode(
                self.live.host.generations.file(number, "receipt.json")
            )
        except (redhost.RedhostError, msgspec.DecodeError):
            return {}
        return found

    def close(self) -> None:
        """Answer the waiting requests and stop, also the services of the named questions."""
        for service in tuple(self.named.values()):
            service.close()
        self._saver.stop()
        for worker in self._workers:
            worker.close()
        self._chats.close()


def _reason(error: redhost.UsageError) -> str:
    """Return what is wrong; what was found may be of the input, unless it is a number."""
    found = error.found if error.found.isdecimal() else ""
    return redhost.UsageError(error.problem, expected=error.expected, found=found).reason


def _generating() -> Any:
    """Return the plugin that generates text.

    Raises:
        MissingError: If it is not installed.
    """
    try:
        import redhost_generate
    except ImportError as e:
        hint = "Run: pip install 'redhost[generate]'"
        raise redhost.MissingError("text generation is part of redhost-generate", hint=hint) from e
    return redhost_generate
