"""The host: what is installed meets what is composed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import msgspec

from ..registry.composition import Composition
from ..registry.discover import discover
from ..registry.errors import HarmError, MissingError, RedhostError, UsageError
from ..registry.generations import Generations
from ..registry.inventory import take_inventory
from ..registry.lock import LOCK, LockFile
from ..registry.lock import read as read_lock
from ..registry.settings import Settings, choose_backbone, load_settings, resolve_home
from ..registry.states import Listing
from ..registry.store import Store
from .composed import Answer, Composed
from .evaluate import Encode, Evaluation, evaluate
from .leave_one_out import leave_one_out
from .loader import Loader
from .mixtures import Mixtures, judge_mixtures
from .outside import Outside, judge_outside
from .plugins import Plugins
from .publish import locked_router, publish, refuse_drift
from .receipt import Receipt
from .recompose import Level, Order, Outcome, recompose
from .rows import Row
from .train_router import Progress
from .workspace import DEFAULT_ROUTER, Workspace, cached, open_workspace, read_package

__all__ = ["Host"]

log = logging.getLogger("redhost")


class Host:
    """One home folder, the packages of this environment, and the current generation.

    Use `Host.open` rather than the constructor; a host is a context manager.

    Args:
        home: The state folder.
        settings: Flags, lock and project settings, already merged.
        plugins: The trusted plugins.
    """

    def __init__(self, *, home: Path, settings: Settings, plugins: Plugins) -> None:
        self.home, self.settings, self.plugins = home, settings, plugins
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
    ) -> Self:
        """Open a host on a home folder.

        Args:
            home: The state folder; by default ``REDHOST_HOME`` or ``.redhost``.
            backbone: The id of the backbone to compose on, when several are installed.
            device: Where the trunk runs, e.g. ``cuda``.
            plugins: The plugins to use; by default those of the environment.
        """
        where = resolve_home(None if home is None else Path(home))
        flags = Settings(backbone=backbone, device=device)
        settings = load_settings(flags=flags, lock=read_lock(where / LOCK))
        return cls(home=where, settings=settings, plugins=plugins or Plugins())

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
        rows = "".join(
            f"<tr><td>{x.id or x.package.dist}</td><td>{x.state}</td><td>{x.reason or ''}</td></tr>"
            for x in self.list_experts()
        )
        return (
            f"<p>{self!r}</p><table><tr><th>expert</th><th>state</th><th></th></tr>{rows}</table>"
        )

    # -- what is composed ---------------------------------------------------------------------

    @property
    def composed(self) -> Composed:
        """The current generation, loaded from the store on first use.

        Raises:
            MissingError: If nothing has been composed in this home.
        """
        current = self.generations.current()
        if current is None:
            raise MissingError(
                f"nothing is composed in {self.home}", hint="Run 'redhost recompose'."
            )
        self._kept = self.load(current)
        return self._kept

    def load(self, number: int) -> Composed:
        """Load any published generation from the store, whatever is installed now."""
        return self._loader.load(number)

    def encoder(self, composed: Composed, *, progress: Progress | None = None) -> Encode:
        """Return texts → h through the feature cache of a composition's backbone."""
        return cached(composed.backbone, composed.fingerprint, self.cache, progress)

    # -- asking -------------------------------------------------------------------------------

    def predict(self, texts: Sequence[str]) -> list[Answer]:
        """Answer texts with the current generation.

        Args:
            texts: Any number of texts.

        Returns:
            One `Answer` a text, in their order.
        """
        return self.composed.answer(texts)

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
        chosen = list(rows) if rows is not None else list(composed.evaluation)
        if not chosen:
            raise MissingError(
                f"backbone {composed.backbone.name!r} ships no evaluation rows",
                hint="Give some with --data FILE.",
            )
        encode = self.encoder(composed, progress=progress)
        result = evaluate(composed, chosen, encode=encode)
        if not leave_out:
            return result
        plugins = self._plugins_of(composed)
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
        """
        composed = self.composed
        return judge_mixtures(
            composed,
            list(rows) if rows is not None else list(composed.evaluation),
            encode=self.encoder(composed, progress=progress),
            plugins=self._plugins_of(composed),
            kinds=kinds,
        )

    def _plugins_of(self, composed: Composed) -> Plugins:
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
        """
        composed = self.composed
        inside = list(rows) if rows is not None else list(composed.evaluation)
        return judge_outside(
            composed, texts, inside, encode=self.encoder(composed, progress=progress)
        )

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
        order = _order(flags.over(self.settings), accept=accept)
        lock = self._lock(flags) if locked else None
        if dry_run:
            return self._compose(order, lock=lock, progress=progress)[1].receipt
        with self.generations.writer() as writer:
            workspace, outcome = self._compose(order, lock=lock, progress=progress)
            receipt = publish(
                workspace, outcome, store=self.store, generations=self.generations, writer=writer
            )
        self.plugins.notify("redhost_composed", receipt=receipt)
        return receipt

    def rollback(self, number: int | None = None) -> int:
        """Make an older generation current again; by default the parent. Nothing is trained."""
        return self.generations.rollback(number).number

    def _lock(self, flags: Settings) -> LockFile:
        """Return the lock to follow; flags may not say otherwise than it does."""
        lock = read_lock(self.home / LOCK)
        if lock is None:
            raise MissingError("there is no lock to follow", hint="Run 'redhost recompose' once.")
        said = {"router": lock.router.kind, "level": lock.router.level, "seed": lock.router.seed}
        for name, value in said.items():
            wanted = getattr(flags, name)
            if wanted not in {None, value}:
                raise UsageError(
                    f"--locked uses the {name} of the lock",
                    expected=str(value),
                    found=str(wanted),
                    hint="Leave it out, or recompose without --locked.",
                )
        return lock

    def _compose(
        self, order: Order, *, lock: LockFile | None, progress: Progress | None
    ) -> tuple[Workspace, Outcome]:
        """Do everything of a recompose but publish."""
        workspace = self._workspace(progress, accept=order.accept)
        if lock is None:
            return workspace, recompose(workspace.bench, order, progress=progress)
        weights = locked_router(workspace, lock, generations=self.generations)
        order = replace(
            order,
            router=lock.router.kind,
            level=cast("Level", lock.router.level),
            seed=lock.router.seed,
        )
        outcome = recompose(workspace.bench, order, weights=weights, progress=progress)
        # Only now is it known which plugins make the norm and the router.
        refuse_drift(workspace, lock, plugins=workspace.bench.providers)
        return workspace, outcome

    def _previous(self, *, accept: bool) -> tuple[Composition | None, Composed | None]:
        """Return the current generation; with `accept`, one that cannot be loaded is let go.

        Raises:
            HarmError: If it cannot be loaded, so that nothing can be compared with it.
        """
        current = self.generations.current()
        if current is None:
            return None, None
        record = None
        try:
            record = self.generations.load(current)
            return record, self.composed
        except RedhostError as e:
            if accept:
                log.warning("not compared with generation %s: %s", current, e.reason)
                return record, None
            raise HarmError(
                f"generation {current} cannot be loaded, so nothing can be compared with it",
                found=e.reason,
                hint="Repair it, or compose anew with --accept.",
            ) from e

    def _workspace(self, progress: Progress | None, *, accept: bool) -> Workspace:
        """Read, check and build everything that is installed."""
        package = choose_backbone(discover("backbone"), self.settings.backbone)
        inventory = take_inventory(self.home, backbone=self.settings.backbone, remember=False)
        record, previous = self._previous(accept=accept)
        return open_workspace(
            package,
            read_package(package),
            inventory.listings,
            plugins=self.plugins,
            cache=self.cache,
            device=self.device,
            record=record,
            previous=previous,
            progress=progress,
        )


def _order(settings: Settings, *, accept: bool) -> Order:
    return Order(
        router=settings.router or DEFAULT_ROUTER,
        level=settings.level or "full",
        seed=settings.seed or 0,
        tolerance=settings.tolerance,
        accept=accept,
    )
