"""The state behind the proxy: the generation that chooses, the upstreams, and what each has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import httpx2
import msgspec

import redhost
from redhost.registry.home.questions import nothing_composed
from redhost_gateway.adapters import AdapterFiles, Loader, adapter_name
from redhost_gateway.choosing import BACKBONE, Chosen, Serving, serve_generation
from redhost_gateway.evidence import conversations
from redhost_gateway.follow import Production
from redhost_gateway.llama_cpp import Scale, scales_for, scales_of, why_none
from redhost_gateway.metrics import Metrics
from redhost_gateway.problems import NoAdapterProblem, Problem, UnknownModelProblem
from redhost_gateway.settings import Limits, UpstreamSettings
from redhost_gateway.tracing import note_choice
from redhost_gateway.upstream import LACKS, Upstream

__all__ = ["AUTO", "Choice", "Fields", "Gateway"]

log = logging.getLogger("redhost.gateway")

AUTO = "auto"
"""The model that stands for the generation's choice."""

NOTHING = "nothing is composed; run 'redhost recompose'"

EVERY = 0.5
"""Seconds between two looks at the home."""

AGAIN = 5.0
"""Seconds after which a generation that could not be served is tried again, at first."""

LONGEST_PAUSE = 60.0
"""Seconds after which it is tried again at last: reading a backbone takes time."""

EAGER = 64
"""Most adapters of a generation that are loaded before it is served; others at their first use."""

NAMELESS = "name it with --model backbone=NAME"

Fields = Mapping[str, msgspec.Raw]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen for a request.

    Attributes:
        serving: The generation.
        expert: The expert, or `BACKBONE`.
        chosen: How it was chosen; None where the client named it.
    """

    serving: Serving
    expert: str
    chosen: Chosen | None = None


@dataclass(eq=False, kw_only=True)
class Gateway:
    """A home, and the upstreams that answer for it.

    Attributes:
        host: The home.
        settings: The upstreams, at least one.
        limits: Limits.
        margin: How far another expert has to lead to take over a conversation.
        folder: Where adapters are written for upstreams to read.
        production: A fleet's production, which the home follows; None for none.
        serving: The generation that chooses; None for none.
        trouble: Why no newer one does, or none at all.
        in_progress: Number of requests in progress.
        draining: Whether it is about to stop: it answers, but is not ready.
    """

    host: redhost.Host
    settings: tuple[UpstreamSettings, ...]
    limits: Limits = field(default_factory=Limits)
    margin: float = 0.2
    folder: Path | None = None
    production: Production | None = None
    serving: Serving | None = None
    trouble: str = NOTHING
    in_progress: int = 0
    draining: bool = False

    def __post_init__(self) -> None:
        """Prepare the upstreams; nothing is sent yet."""
        self.upstreams = tuple(Upstream(s, limits=self.limits) for s in self.settings)
        folder = self.folder or self.host.home / "gateway"
        files = AdapterFiles(store=self.host, folder=folder)
        self.loaders = {
            u: Loader(u, files) for u in self.upstreams if u.settings.loads in {"vllm", "sglang"}
        }
        self.metrics = Metrics(
            generation=lambda: None if self.serving is None else self.serving.number,
            in_progress=lambda: self.in_progress,
            absent=lambda: len(self.absent()),
            upstreams=self.upstreams,
        )
        self._leaving: list[Serving] = []
        self._seen: object = None
        self._unfollowed, self._unknown = "", list[str]()
        self._tried, self._pause = 0.0, AGAIN
        self._tasks: list[asyncio.Task[None]] = []

    def drain(self) -> None:
        """Stop being ready; requests are answered all the same."""
        self.draining = True

    async def start(self) -> None:
        """Check the upstreams, serve the current generation, and follow both."""
        await self.check()
        await self.look()
        for work, seconds in ((self.check, self.limits.check), (self.look, EVERY)):
            self._tasks.append(asyncio.create_task(_repeat(work, seconds)))

    async def stop(self) -> None:
        """Stop following, and close what is open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for serving in (*self._leaving, *([self.serving] if self.serving else [])):
            await serving.close()
        for upstream in self.upstreams:
            await upstream.close()

    async def choose(self, fields: Fields) -> Choice | None:
        """Return the choice for a request; None if it names a model of the upstreams.

        The generation counts the request until `done`.

        Raises:
            Problem: If nothing can be chosen.
        """
        model = _name(fields)
        serving = self.serving
        if model != AUTO and (serving is None or model not in serving.columns):
            return None
        if serving is None:
            raise Problem(503, f"no model is chosen: {self.trouble}", code="nothing_composed")
        serving.users += 1
        try:
            if model != AUTO:
                return Choice(serving=serving, expert=str(model))
            start = time.perf_counter()
            chosen = await serving.choose(conversations(fields))
            self.metrics.chosen(chosen, seconds=time.perf_counter() - start)
            note_choice(chosen)
            return Choice(serving=serving, expert=chosen.expert, chosen=chosen)
        except BaseException:
            serving.users -= 1
            raise

    def done(self, choice: Choice | None) -> None:
        """Note that a request with a choice is answered."""
        if choice is not None:
            choice.serving.users -= 1

    async def fields_for(self, upstream: Upstream, choice: Choice) -> dict[str, msgspec.Raw]:
        """Return the fields by which an upstream answers with the chosen expert.

        Raises:
            Problem: If it cannot.
            TransportError: If it does not answer.
        """
        expert, kind = choice.expert, upstream.settings.loads
        digest = choice.serving.adapters.get(expert)
        name = upstream.name_of(expert)
        extra: dict[str, msgspec.Raw] = {}
        if upstream in self.loaders and digest and expert not in upstream.settings.models:
            name = await self._loaded(upstream, expert, digest)
        elif kind == "llama.cpp":
            await upstream.list_adapters()
            if (scales := scales_of(upstream, choice.serving, expert)) is None:
                raise NoAdapterProblem(expert, why_none(upstream, choice.serving, expert))
            extra = _scaled(scales)
            name = upstream.name_of(BACKBONE) or name
        if name is None:
            raise NoAdapterProblem(expert, NAMELESS)
        return {"model": _raw(name), **extra}

    async def fields_of_none(
        self, upstream: Upstream, fields: Fields, name: str | None
    ) -> dict[str, msgspec.Raw]:
        """Return the fields by which no adapter answers a request that names none of a generation.

        llama.cpp would answer with all that it was started with. A request's own scales stay.

        Raises:
            TransportError: If the upstream does not answer.
            Problem: 404 if llama.cpp has no model of that name: it would answer with what it has.
        """
        if upstream.settings.loads != "llama.cpp" or not fields:
            return {}
        if upstream.fit(name, chosen=False) == LACKS:
            raise UnknownModelProblem
        if "lora" in fields:
            return {}
        scales = scales_for(await upstream.list_adapters(), None)
        return {} if scales is None else _scaled(scales)

    def absent(self) -> dict[str, dict[str, str]]:
        """Return the generation's columns that no upstream can answer with → upstream → why."""
        serving, found = self.serving, dict[str, dict[str, str]]()
        if serving is None:
            return found
        for column in serving.columns:
            reasons = [(u.url, self._lacks(u, serving, column)) for u in self.upstreams]
            if all(reason for _, reason in reasons):
                found[column] = dict(reasons)
        return found

    def _lacks(self, upstream: Upstream, serving: Serving, expert: str) -> str:
        """Return why an upstream cannot answer with an expert; empty if it can, or may."""
        if not upstream.healthy:
            return "it does not answer"
        digest = serving.adapters.get(expert)
        if upstream in self.loaders and digest and expert not in upstream.settings.models:
            refusal = self.loaders[upstream].refused.get(adapter_name(expert, digest))
            return "" if refusal is None else refusal.reason
        if upstream.settings.loads == "llama.cpp":
            has = scales_of(upstream, serving, expert) is not None
            return "" if has else why_none(upstream, serving, expert)
        if upstream.name_of(expert) is None:
            return NAMELESS
        return "" if upstream.fit(expert, chosen=False) < LACKS else "it lists no such model"

    async def _loaded(self, upstream: Upstream, expert: str, digest: str) -> str:
        try:
            name = await self.loaders[upstream].ensure(expert, digest)
        except redhost.RedhostError as e:
            log.warning("%s", e)
            raise NoAdapterProblem(expert, "it could not be loaded") from e
        base = upstream.name_of(BACKBONE)
        return f"{base}:{name}" if upstream.settings.loads == "sglang" and base else name

    def lost(self, upstream: Upstream, choice: Choice) -> bool:
        """Note that an upstream does not know a chosen expert's name.

        Returns:
            Whether it may once it is loaded again.
        """
        digest = choice.serving.adapters.get(choice.expert)
        if upstream not in self.loaders or digest is None:
            return False
        self.loaders[upstream].forget({adapter_name(choice.expert, digest)})
        return True

    async def check(self) -> None:
        """Check every upstream once; what one lost is loaded again."""
        # What is loaded meanwhile may not be listed yet; forgotten, it would never be unloaded.
        before = {loader: frozenset(loader.loaded) for loader in self.loaders.values()}
        await asyncio.gather(*(upstream.check() for upstream in self.upstreams))
        for upstream, loader in self.loaders.items():
            if upstream.healthy:
                loader.forget(loader.unlisted() & before[loader])

    async def look(self) -> None:
        """Follow the home once: serve what is current, unless it is served or was refused."""
        if self.production is not None:
            await self._follow_fleet(self.production)
        state = await asyncio.to_thread(self._state)
        if state != self._seen or (self.trouble and time.monotonic() - self._tried > self._pause):
            self._seen, self._tried = state, time.monotonic()
            try:
                number, reason = await asyncio.to_thread(self._wanted)
                await self._follow(number)
                nothing = "" if self.serving else str(nothing_composed(self.host.home))
                self.trouble = reason or nothing
                self._pause = AGAIN
            except (redhost.RedhostError, httpx2.TransportError) as e:
                if str(e) != self.trouble:
                    log.warning("%s: %s", self._goes_on(), e)
                self.trouble = str(e)
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
        await self._tidy()

    async def _serve(self, number: int) -> None:
        """Serve a generation once its adapters are loaded where upstreams answer."""
        made = await asyncio.to_thread(
            serve_generation,
            self.host,
            number,
            margin=self.margin,
            queue=self.limits.requests,
        )
        try:
            await self._load(made)
        except BaseException:
            await made.close()
            raise
        self._leave(made)
        log.info("generation %s chooses", number)
        self._check_names(made)

    def _check_names(self, serving: Serving) -> None:
        """Say which configured names are of no expert; a later generation may have it."""
        known = {*serving.columns, BACKBONE}
        unknown = sorted({name for u in self.settings for name in u.models} - known)
        if unknown and unknown != self._unknown:
            near = sorted({c for name in unknown for c in get_close_matches(name, known, 1)})
            log.warning(
                "models of --model or --config: expected ids of generation %s, found %s; %s",
                serving.number,
                ", ".join(map(repr, unknown)),
                f"meant: {', '.join(near)}?" if near else "'redhost list-experts' lists them",
            )
        self._unknown = unknown

    async def _load(self, serving: Serving) -> None:
        for upstream, loader in self.loaders.items():
            if not upstream.healthy:
                continue
            eager = list(serving.adapters.items())[:EAGER]
            for expert, digest in eager:
                if expert in upstream.settings.models:
                    continue
                try:
                    await loader.ensure(expert, digest)
                except httpx2.TransportError as e:
                    upstream.down(e)
                    break

    async def _follow_fleet(self, production: Production) -> None:
        """Follow a fleet's production; while that is not possible, the home's own goes on."""
        try:
            await asyncio.to_thread(production.look)
            self._unfollowed = ""
        except redhost.RedhostError as e:
            if self._unfollowed != e.reason:
                log.warning("production is not followed, %s: %s", self._goes_on(), e.reason)
            self._unfollowed = e.reason

    def _wanted(self) -> tuple[int | None, str]:
        """Return the generation to serve, and why that is not the home's current one.

        Where something of the current one is revoked, it is the newest without it, if there is one.
        """
        generations = self.host.generations
        number = generations.current()
        refusal = None if number is None else generations.refusal(generations.load(number))
        if refusal is None:
            return number, ""
        log.warning("generation %s is left: %s", number, refusal)
        whole = (r.number for r in generations.history() if generations.refusal(r) is None)
        return max(whole, default=None), refusal.reason

    async def _follow(self, number: int | None) -> None:
        """Serve a generation, or none; what is revoked is left even if nothing else can be served.

        Raises:
            RedhostError: If it cannot be served.
        """
        before = self.serving
        if before is not None and before.number == number:
            return
        if before is not None and await asyncio.to_thread(self._is_revoked, before.number):
            self._leave(None)
        if number is not None:
            await self._serve(number)

    def _is_revoked(self, number: int) -> bool:
        generations = self.host.generations
        return generations.refusal(generations.load(number)) is not None

    def _leave(self, following: Serving | None) -> None:
        """Choose by another generation, or by none, from the next request on."""
        before, self.serving = self.serving, following
        if before is not None:
            self._leaving.append(before)

    async def _tidy(self) -> None:
        """Let generations go that nobody uses, then unload what no generation names."""
        for serving in [s for s in self._leaving if not s.users]:
            self._leaving.remove(serving)
            await serving.close()
        used = [*self._leaving, *([self.serving] if self.serving else [])]
        names = {adapter_name(*x) for serving in used for x in serving.adapters.items()}
        for upstream, loader in self.loaders.items():
            with suppress(httpx2.TransportError):
                if upstream.healthy and not loader.loaded <= names:
                    await loader.unload_all_but(names)
                if upstream.healthy and loader.refused:
                    await loader.retry(names, after=LONGEST_PAUSE)

    def _state(self) -> tuple[bytes | None, tuple[int, int, int] | None]:
        """Return what changes whenever another generation is current, or more is revoked."""
        try:
            status = self.host.store.folder.with_name("revoked.json").stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            stamp = None
        return self.host.generations.pointer(), stamp

    def _goes_on(self) -> str:
        return f"generation {self.serving.number} goes on" if self.serving else "none is served"


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do work repeatedly; what ends it is logged, and it is done again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("cannot follow")


def _scaled(scales: Sequence[Scale]) -> dict[str, msgspec.Raw]:
    """Return llama.cpp's fields of scales."""
    # What a slot read under other scales may be used again otherwise: llama.cpp #26207.
    return {"lora": _raw(scales), "cache_prompt": _raw(False)}


def _name(fields: Fields) -> str | None:
    try:
        return msgspec.json.decode(fields.get("model", b"null"), type=str | None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
