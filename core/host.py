"""The host: composes the installed packages and answers with the current generation."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import msgspec

from ..registry.environment.status import PackageStatus
from ..registry.environment.trust import require_agreed
from ..registry.errors import RedhostError
from ..registry.home.questions import composed_questions, home_of, question_of
from ..registry.queries.inventory import take_inventories
from ..registry.queries.settings import Settings, resolve_home
from .composition.changes import change_members
from .composition.options import RecomposeKeywords
from .composition.recompose import recompose
from .composition.select import ExpertSource
from .evaluation.evaluate import Evaluation, evaluate
from .evaluation.with_router import leave_one_out
from .model.composed import Answer, ComposedModel
from .model.questions import Questions
from .model.route import Chooser, Route
from .plugins.manager import Plugins
from .receipt import Receipt
from .session import Prefetcher, Session
from .types import Encode, Progress, Row


class Host:
    """One home folder, the packages of this environment, and the current generation.

    The host of a home answers every question that is composed in it. All other methods, such as
    `recompose`, apply to the default question; `of_question` returns the host of a named one.

    Use `Host.open` rather than the constructor; a host is a context manager.

    Args:
        session: Its home, and the plugins and settings that compositions are made with.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.home, self.store, self.generations = session.home, session.store, session.generations
        self.plugins, self.device = session.plugins, session.device
        self.cache, self.question = session.cache, question_of(session.home)
        self._model: ComposedModel | None = None  # keeps the current generation in memory
        self._chooser: Chooser | None = None
        self._named: tuple[bytes | None, int] = (None, 0)  # the pointer's bytes, and its number
        self._beside: dict[str, Self] = {}

    @classmethod
    def open(
        cls,
        home: str | Path | None = None,
        *,
        question: str | None = None,
        backbone: str | None = None,
        device: str | None = None,
        plugins: Plugins | None = None,
        workers: Prefetcher | None = None,
    ) -> Self:
        """Open a host on a home folder.

        Args:
            home: The state folder; by default ``REDHOST_HOME`` or ``.redhost``.
            question: The named question that this host is for; None for the home itself.
            backbone: The id of the backbone to compose on, when several are installed.
            device: Where the trunk runs, e.g. ``cuda``.
            plugins: The plugins to use; by default those of the environment.
            workers: Workers that encode many texts ahead of time, of the plugin redhost-ray; None
                encodes them on demand, in this process.

        Raises:
            UsageError: If the question's name is not valid.
        """
        where = home_of(resolve_home(None if home is None else Path(home)), question)
        flags, plugins = Settings(backbone=backbone, device=device), plugins or Plugins()
        return cls(Session.of(where, plugins=plugins, flags=flags, pool=workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._model = self._chooser = None
        self._beside.clear()

    def __repr__(self) -> str:
        return f"Host(home={str(self.home)!r}, generation={self.generations.current()})"

    def _repr_html_(self) -> str:
        cells = ((x.id or x.package.dist, x.state, x.reason or "") for x in self.list_experts())
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in cells)
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        return (
            f"<p>{escape(repr(self))}</p>"
            f"<table><tr><th>expert</th><th>state</th><th></th></tr>{rows}</table>"
        )

    # -- what is composed ---------------------------------------------------------------------

    @property
    def composed(self) -> ComposedModel:
        """The current generation, loaded from the store on first use.

        Raises:
            MissingError: If nothing has been composed in this home.
        """
        return self._current(lazy=False)

    def _current(self, *, lazy: bool) -> ComposedModel:
        pointer = self.generations.pointer()
        if pointer is None or pointer != self._named[0]:  # else the record is known already
            self._named = pointer, self.session.require_current()
        self._model = self.session.loader.load(self._named[1], lazy=lazy)
        return self._model

    @property
    def questions(self) -> tuple[str, ...]:
        """The named questions composed in this home; empty for the host of a named question."""
        return composed_questions(self.home)

    def of_question(self, name: str) -> Self:
        """Return the host of a named question in this home; it shares backbones with this one.

        Raises:
            UsageError: If the question's name is not valid.
        """
        if name not in self._beside:
            current = self.session
            session = Session.of(
                home_of(self.home, name),
                plugins=self.plugins,
                flags=Settings(device=self.device),
                pool=current.pool,
                backbones=current.loader.backbones,
            )
            self._beside[name] = type(self)(session)
        return self._beside[name]

    @property
    def side_by_side(self) -> Questions:
        """The current generation of every question that is composed in this home.

        A question that cannot be loaded does not block the others; see `Questions.damaged`.

        Raises:
            MissingError: If none is composed.
            RedhostError: If none can be loaded; the message names the question.
        """
        names, default = self.questions, None
        named, damaged = dict[str, ComposedModel](), dict[str | None, RedhostError]()
        if self.generations.pointer() is not None or not names:
            try:
                default = self._current(lazy=True)
            except RedhostError as e:
                damaged[None] = e
        for name in names:
            try:
                named[name] = self.of_question(name)._current(lazy=True)
            except RedhostError as e:
                e.problem = f"question {name!r}: {e.problem}"
                damaged[name] = e
        if default is None and not named:
            first, *_ = damaged.values()
            raise first
        return Questions(default=default, named=named, damaged=damaged)

    def load(self, number: int) -> ComposedModel:
        """Load any published generation from the store, independent of what is installed."""
        return self.session.loader.load(number)

    def encoder(self, model: ComposedModel, *, progress: Progress | None = None) -> Encode:
        """Return a function texts → h, through the feature cache of a composition's backbone."""
        return self.session.encoder(model, progress=progress)

    # -- answering ----------------------------------------------------------------------------

    def predict(
        self, texts: str | Iterable[str], *, sets: float | None = None, each: bool = False
    ) -> list[Answer]:
        """Answer one text, or several, with the current generation of every question.

        Texts are encoded once for all questions on one backbone. The default question's answer
        contains those of the named questions in `questions`; each is bitwise identical to the
        answer of that question alone. Under a sparse router an expert is read and checked when it
        is first picked; `composed` reads all experts.

        Args:
            texts: A text, or any iterable of texts.
            sets: The coverage of label sets: how often the right label is among an answer's
                `labels`, e.g. 0.9; for questions with one right label.
            each: Whether every expert also answers on its own, in an answer's `by_expert`.

        Returns:
            A list with one `Answer` per text, in order, also for a single text.

        Raises:
            InputTypeError: If the texts are of another type; it is a `TypeError`.
            UsageError: If a text has no tokens, or no question supports the label sets asked for.
            RedhostError: If a question cannot be answered; `side_by_side` answers the others.
        """
        questions = self.side_by_side
        for error in questions.damaged.values():
            raise error
        return questions.answer(texts, sets=sets, each=each)

    def route(self, texts: str | Iterable[str]) -> list[Route]:
        """Return which expert's domain each text belongs to; no expert is read or run.

        Args:
            texts: A text, or any iterable of texts; in generation, prompts.

        Returns:
            A list with one `Route` per text, in order.

        Raises:
            InputTypeError: If the texts are of another type.
            UsageError: If the current generation's router queries experts.
        """
        number = self.session.require_current()
        if self._chooser is None or self._chooser.generation != number:
            self._chooser = self.session.loader.chooser(number)
        return self._chooser.route(texts)

    def set_warnings(self, level: float) -> tuple[str, ...]:
        """Return warnings on label sets of a level: experts with too few gate rows for it."""
        return self._current(lazy=True).set_warnings(level)

    def evaluate(
        self,
        rows: Iterable[Row] | None = None,
        *,
        leave_out: bool = False,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Evaluate the current generation, and simpler alternatives for comparison.

        Args:
            rows: Any iterable of labelled rows; by default the backbone's own held-out rows.
            leave_out: Also retrain the router without each expert in turn.
            progress: Called with (texts encoded, texts to encode).

        Raises:
            MissingError: If no rows are given and the backbone ships none.
        """
        composed = self.composed
        chosen = composed.evaluation_rows(rows)
        encode = self.encoder(composed, progress=progress)
        self.session.prefetch(composed, [r.text for r in chosen], progress=progress)
        result = evaluate(composed, chosen, encode=encode)
        if not leave_out:
            return result
        plugins = self.session.plugins_of(composed)
        matrix = leave_one_out(composed, chosen, encode=encode, plugins=plugins)
        return msgspec.structs.replace(result, leave_one_out=matrix)

    # -- what is installed --------------------------------------------------------------------

    def list_experts(self) -> tuple[PackageStatus, ...]:
        """Return the experts installed for this host's question, or for any of this home's.

        Each has its state there; results of checks may be cached.
        """
        inventories = take_inventories(self.home, backbone=self.session.settings.backbone)
        return tuple(x for inventory in inventories.values() for x in inventory.statuses)

    # -- composing ----------------------------------------------------------------------------

    def recompose(
        self, *, locked: bool = False, dry_run: bool = False, **keywords: Unpack[RecomposeKeywords]
    ) -> Receipt:
        """Check the installed packages, retrain only the router, and publish a generation.

        Where that is the current generation again, bit for bit, nothing is published unless it is
        `locked`, and the receipt has that one's number.

        Args:
            locked: Refuse unless the installed packages equal the lock; reuse its router, with the
                kind, level and seed of the lock.
            dry_run: Do everything except publish.
            keywords: Router, level, seed, tolerance, accept, decline and progress: see
                `RecomposeKeywords`.

        Returns:
            The receipt.

        Raises:
            HarmError: If something that works would be lost, e.g. accuracy beyond the tolerance.
            MissingError: If there is nothing to compose, or the lock's router is gone.
            UsageError: If the router lacks the level, or it contradicts the lock.
        """
        return recompose(self.session, keywords, locked=locked, dry_run=dry_run)

    def attach(self, source: ExpertSource, **keywords: Unpack[RecomposeKeywords]) -> Receipt:
        """Compose the current members and one more expert; nothing is installed.

        Args:
            source: The id of an installed expert, the path of a wheel or of a package's folder.
            keywords: See `RecomposeKeywords`.

        Raises:
            UsageError: If an expert of this id is composed already.
            ContractError: If it breaks its contract or does not fit.
            HarmError: If another domain would lose more than the tolerance.
        """
        return change_members(self.session, add=source, keywords=keywords)

    def detach(self, expert_id: str, **keywords: Unpack[RecomposeKeywords]) -> Receipt:
        """Compose the current members without one expert, which stays installed.

        Args:
            expert_id: Its id.
            keywords: See `RecomposeKeywords`.

        Raises:
            UnknownNameError: If it is not composed.
            HarmError: If another domain would lose more than the tolerance.
        """
        return change_members(self.session, remove=expert_id, keywords=keywords)

    def replace(
        self, expert_id: str, source: ExpertSource, **keywords: Unpack[RecomposeKeywords]
    ) -> Receipt:
        """Compose the current members with one expert exchanged, in one step.

        Args:
            expert_id: The id of the expert to remove.
            source: The expert to add, as for `attach`; it may have the same id.
            keywords: See `RecomposeKeywords`.
        """
        return change_members(self.session, add=source, remove=expert_id, keywords=keywords)

    def rollback(self, number: int | None = None) -> int:
        """Make an older generation current again; by default the parent. Nothing is trained.

        Raises:
            RedhostError: If it cannot be loaded: a plugin of it is gone, or stored bytes are not
                those that were composed. The current generation stays.
        """
        return self.generations.rollback(number, require_plugins=require_agreed).number
