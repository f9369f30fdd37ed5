"""The host: what is installed meets what is composed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import msgspec

from ..registry.errors import MissingError
from ..registry.files import read_backbone
from ..registry.generations import Generations
from ..registry.inventory import take_inventory
from ..registry.lock import LOCK
from ..registry.lock import read as read_lock
from ..registry.settings import Settings, load_settings, resolve_home
from ..registry.states import Listing
from ..registry.store import Store
from .answering.composed import Answer, Composed, answers_labels
from .answering.loader import Loader
from .composing.bench import Level
from .composing.changes import ChangeOptions, change_members
from .composing.compose import compose_selection, lock_to_follow, make_order
from .composing.publish import publish
from .composing.recompose import Outcome
from .composing.selection import Source, select_installed
from .composing.workspace import Workspace, cached
from .encode import Encode
from .engines.crew import LOCAL, Crew, choose_crew
from .engines.shards import Ahead
from .extending.assemble import sound
from .extending.plugins import Plugins
from .generate.decode import Token, generate
from .measuring.evaluate import Evaluation, evaluate
from .measuring.leave_one_out import leave_one_out
from .measuring.mixtures import Mixtures, judge_mixtures
from .measuring.outside import Outside, judge_outside
from .progress import Progress
from .receipt import Receipt
from .rows import Row

__all__ = ["Host"]


class Host:
    """One home folder, the packages of this environment, and the current generation.

    Use `Host.open` rather than the constructor; a host is a context manager.

    Args:
        home: The state folder.
        settings: Flags, lock and project settings, already merged.
        plugins: The trusted plugins.
        crew: Who computes features ahead; None for this process, when they are asked for.
    """

    def __init__(
        self, *, home: Path, settings: Settings, plugins: Plugins, crew: Crew | None = None
    ) -> None:
        self.home, self.settings, self.plugins, self.crew = home, settings, plugins, crew
        self.store = Store(home)
        self.generations = Generations(home)
        self.cache = home / "cache" / "features"
        self.device = settings.device or "cpu"
        self._loader = Loader(home, plugins=plugins, device=self.device)
        self._kept: Composed | None = None  # the current generation; others go with their users

    @classmethod
    def open(
        cls,
        home: str | Path | None = None,
        *,
        backbone: str | None = None,
        device: str | None = None,
        plugins: Plugins | None = None,
        engine: str = LOCAL,
        workers: int = 1,
    ) -> Self:
        """Open a host on a home folder.

        Args:
            home: The state folder; by default ``REDHOST_HOME`` or ``.redhost``.
            backbone: The id of the backbone to compose on, when several are installed.
            device: Where the trunk runs, e.g. ``cuda``.
            plugins: The plugins to use; by default those of the environment.
            engine: Where many texts are encoded: ``local``, or one that a trusted plugin brings.
            workers: How many work at a time; one local worker is this process.

        Raises:
            UsageError: If nobody provides the engine.
        """
        where = resolve_home(None if home is None else Path(home))
        flags = Settings(backbone=backbone, device=device)
        settings = load_settings(flags=flags, lock=read_lock(where / LOCK))
        plugins = plugins or Plugins()
        crew = choose_crew(plugins, engine=engine, workers=workers)
        alone = engine == LOCAL and workers == 1
        return cls(home=where, settings=settings, plugins=plugins, crew=None if alone else crew)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kept = None

    def __repr__(self) -> str:
        return f"Host(home={str(self.home)!r}, generation={self.generations.current()})"

    def _repr_html_(self) -> str:
        cells = ((x.id or x.package.dist, x.state, x.reason or "") for x in self.list_experts())
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in cells)
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        head = "<tr><th>expert</th><th>state</th><th></th></tr>"
        return f"<p>{escape(repr(self))}</p><table>{head}{rows}</table>"

    # -- what is composed ---------------------------------------------------------------------

    @property
    def composed(self) -> Composed:
        """The current generation, loaded from the store on first use.

        Raises:
            MissingError: If nothing has been composed in this home.
        """
        return self._current(lazy=False)

    def _current(self, *, lazy: bool) -> Composed:
        current = self.generations.current()
        if current is None:
            raise MissingError(
                f"nothing is composed in {self.home}", hint="Run 'redhost recompose'."
            )
        self._kept = self._loader.load(current, lazy=lazy)
        return self._kept

    def load(self, number: int) -> Composed:
        """Load any published generation from the store, whatever is installed now."""
        return self._loader.load(number)

    def encoder(self, composed: Composed, *, progress: Progress | None = None) -> Encode:
        """Return texts → h through the feature cache of a composition's backbone."""
        return cached(composed.backbone, composed.fingerprint, self.cache, progress)

    def ahead(self, progress: Progress | None = None) -> Ahead | None:
        """Return what encodes texts ahead of time, where there is a crew to do it."""
        return None if self.crew is None else Ahead(crew=self.crew, progress=progress)

    def encode_ahead(
        self, composed: Composed, texts: Sequence[str], *, progress: Progress | None = None
    ) -> None:
        """Have the crew encode texts, and the cards of a generation, before they are asked for.

        Does nothing without a crew, or where a plugin makes backbones: workers make built-in parts
        from the bytes in the store.
        """
        ahead = self.ahead(progress)
        if ahead is None or composed.generation is None:
            return
        if self.plugins_of(composed).providers("redhost_make_backbone"):
            return
        told = self.generations.load(composed.generation).backbone
        files = sound(read_backbone(self.store.get(told.digest)), told.id, digest=told.digest)
        cards = [r.text for card in composed.cards.values() for r in card.rows]
        ahead.encode([*cards, *texts], backbone=composed.backbone, files=files, folder=self.cache)

    # -- asking -------------------------------------------------------------------------------

    def predict(self, texts: Sequence[str]) -> list[Answer]:
        """Answer texts with the current generation.

        Under a sparse router an expert is read and checked when it is first picked; `composed`
        reads them all.

        Args:
            texts: Any number of texts.

        Returns:
            One `Answer` a text, in their order.
        """
        return self._current(lazy=True).answer(texts)

    def generate(
        self, prompt: str, *, max_tokens: int = 100, temperature: float = 1.0, seed: int = 0
    ) -> Iterator[Token]:
        """Yield the tokens with which the current generation goes on with a prompt.

        Args:
            prompt: The text to go on with; may be empty.
            max_tokens: How many at most.
            temperature: T; 0 takes the most probable token.
            seed: Where draws come from.

        Raises:
            UsageError: If the backbone does not generate, or the prompt is too long for it.
        """
        return generate(
            self.composed, prompt, max_tokens=max_tokens, temperature=temperature, seed=seed
        )

    def evaluate(
        self,
        rows: Sequence[Row] | None = None,
        *,
        leave_out: bool = False,
        progress: Progress | None = None,
    ) -> Evaluation:
        """Evaluate the current generation and everything simpler beside it.

        Args:
            rows: Labelled rows; by default the backbone's own held-out rows.
            leave_out: Also retrain the router without each expert in turn.
            progress: Called with (texts encoded, texts to encode).

        Raises:
            MissingError: If no rows are given and the backbone ships none.
        """
        composed = self.composed
        chosen = composed.judged_on(rows)
        encode = self.encoder(composed, progress=progress)
        self.encode_ahead(composed, [r.text for r in chosen], progress=progress)
        result = evaluate(composed, chosen, encode=encode)
        if not leave_out:
            return result
        plugins = self.plugins_of(composed)
        matrix = leave_one_out(composed, chosen, encode=encode, plugins=plugins)
        return msgspec.structs.replace(result, leave_one_out=matrix)

    def mixtures(
        self,
        rows: Sequence[Row] | None = None,
        *,
        kinds: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Mixtures:
        """Judge every router kind under every mixture of traffic over the experts' domains.

        Args:
            rows: Labelled rows; by default the backbone's own held-out rows.
            kinds: Beside the generation's own; by default every built-in kind.
            progress: Called with (texts encoded, texts to encode).

        Raises:
            MissingError: If no rows are given and the backbone ships none.
            UsageError: If the backbone does not answer labels, or fewer than two domains have rows.
        """
        composed = self.composed
        answers_labels(composed, "mixtures of traffic")
        return judge_mixtures(
            composed,
            composed.judged_on(rows),
            encode=self.encoder(composed, progress=progress),
            plugins=self.plugins_of(composed),
            kinds=kinds,
        )

    def plugins_of(self, composed: Composed) -> Plugins:
        """Return the plugins that a generation was made with."""
        if composed.generation is None:
            return self.plugins
        return self.plugins.only(self.generations.load(composed.generation).providers)

    def outside(
        self,
        texts: Sequence[str],
        rows: Sequence[Row] | None = None,
        *,
        progress: Progress | None = None,
    ) -> Outside:
        """Report how often the current generation declines texts from elsewhere.

        Args:
            texts: Texts of a source that no expert and no background card comes from.
            rows: Rows of the experts' domains; by default the backbone's held-out rows.
            progress: Called with (texts encoded, texts to encode).

        Raises:
            MissingError: If no rows are given and the backbone ships none.
            UsageError: If the composition cannot decline, or the backbone generates text.
        """
        composed = self.composed
        answers_labels(composed, "texts from outside")
        encode = self.encoder(composed, progress=progress)
        return judge_outside(composed, texts, composed.judged_on(rows), encode=encode)

    # -- what is installed --------------------------------------------------------------------

    def list_experts(self) -> tuple[Listing, ...]:
        """Return every installed expert with its state; verdicts may be remembered."""
        return take_inventory(self.home, backbone=self.settings.backbone).listings

    # -- composing ----------------------------------------------------------------------------

    def recompose(
        self,
        *,
        router: str | None = None,
        level: Level | None = None,
        seed: int | None = None,
        tolerance: float | None = None,
        accept: bool = False,
        locked: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Receipt:
        """Check what is installed, retrain only the router, publish a generation.

        Args:
            router: The router's kind.
            level: ``full``, ``row`` or ``zero``.
            seed: Where randomness comes from.
            tolerance: Points a domain may lose before the composition is refused; by default one,
                or two gate rows where that is more.
            accept: Publish even so.
            locked: Refuse unless what is installed equals the lock; reuse its router, whose
                kind, level and seed the lock alone says.
            dry_run: Do everything but publish.
            progress: Called with (steps done, steps in all).

        Returns:
            The receipt.

        Raises:
            HarmError: If something that worked would stop working.
            MissingError: If there is nothing to compose, or the lock's router is gone.
            UsageError: If the level is not one the router has, or contradicts the lock.
        """
        flags = Settings(router=router, level=level, seed=seed, tolerance=tolerance)
        lock = lock_to_follow(self.home, flags) if locked else None

        def compose() -> tuple[Workspace, Outcome]:
            selection = select_installed(self.home, backbone=self.settings.backbone)
            order = make_order(flags.over(self.settings), selection, accept=accept)
            return compose_selection(self, selection, order, lock=lock, progress=progress)

        if dry_run:
            return compose()[1].receipt
        with self.generations.writer() as writer:
            workspace, outcome = compose()
            receipt = publish(
                workspace, outcome, store=self.store, generations=self.generations, writer=writer
            )
        self.plugins.notify("redhost_composed", receipt=receipt)
        return receipt

    def attach(self, source: Source, **options: Unpack[ChangeOptions]) -> Receipt:
        """Compose the current members and one expert more; nothing is installed.

        Args:
            source: The id of an installed expert, the path of a wheel or of a package's folder.
            options: See `ChangeOptions`.

        Raises:
            UsageError: If an expert of this id is composed already.
            ContractError: If it breaks its contract or does not fit.
            HarmError: If another domain would lose more than the tolerance.
        """
        return change_members(self, put=source, options=options)

    def detach(self, expert_id: str, **options: Unpack[ChangeOptions]) -> Receipt:
        """Compose the current members without one; it stays installed.

        Args:
            expert_id: Its id.
            options: See `ChangeOptions`.

        Raises:
            UnknownNameError: If it is not composed.
            HarmError: If another domain would lose more than the tolerance.
        """
        return change_members(self, take=expert_id, options=options)

    def replace(self, expert_id: str, source: Source, **options: Unpack[ChangeOptions]) -> Receipt:
        """Compose the current members with one exchanged, in one step.

        Args:
            expert_id: The id of the one that leaves.
            source: The one that joins, as for `attach`; it may have the same id.
            options: See `ChangeOptions`.
        """
        return change_members(self, put=source, take=expert_id, options=options)

    def rollback(self, number: int | None = None) -> int:
        """Make an older generation current again; by default the parent. Nothing is trained."""
        return self.generations.rollback(number).number
