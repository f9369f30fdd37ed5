"""The state that composing needs: a home, plugins, settings, and where features are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from ..registry.home.composition import LOCK, read_lock
from ..registry.home.generations import Generations
from ..registry.home.questions import cache_of, nothing_composed
from ..registry.home.store import Store
from ..registry.package.checked import Violation
from ..registry.package.readers import BackboneFiles, ExpertFiles
from ..registry.queries.settings import Settings, load_settings
from .backbones.backbone import Backbone
from .backbones.feature_cache import cached_encode
from .model.build import backbone_makers
from .model.composed import ComposedModel
from .model.stored import GenerationLoader, LoadedBackbones
from .plugins.manager import Plugins
from .types import Encode, Progress


class Prefetcher(Protocol):
    """Fills the feature cache of a backbone with many texts, e.g. by a pool of workers."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        backbone: Backbone,
        files: BackboneFiles,
        folder: Path | None,
        progress: Progress | None = None,
    ) -> int:
        """Put h of texts into the cache in a folder; return how many were missing."""
        ...


ToVerify = tuple[str, ExpertFiles, BackboneFiles | None]
"""An expert that passed every static check: its name, its files, and those of its backbone."""


class Workers(Prefetcher, Protocol):
    """Workers of an engine, which the plugin redhost-ray has."""

    def verify(
        self, experts: Sequence[ToVerify], *, home: Path | None, progress: Progress | None = None
    ) -> list[tuple[Violation, ...]]:
        """Verify experts by computing; return the violations of each, in order."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """One home, with the plugins and settings of its compositions; a `Host` owns one.

    Attributes:
        home: The state folder.
        store: The bytes of composed packages.
        generations: The published generations.
        loader: Loads generations; those in use are loaded once.
        plugins: The trusted plugins.
        flags: The settings given for this session alone, which precede all others.
        device: Where the trunk runs.
        cache: The folder of the feature cache.
        pool: Computes features ahead of time; None for no such workers.
    """

    home: Path
    store: Store
    generations: Generations
    loader: GenerationLoader
    plugins: Plugins
    flags: Settings
    device: str
    cache: Path
    pool: Prefetcher | None = None

    @classmethod
    def of(
        cls,
        home: Path,
        *,
        plugins: Plugins,
        flags: Settings,
        pool: Prefetcher | None = None,
        backbones: LoadedBackbones | None = None,
    ) -> Self:
        """Return the session of a home folder; it may share backbones with another session."""
        device = load_settings(flags=flags, lock=read_lock(home / LOCK)).device or "cpu"
        generations = Generations(home)
        return cls(
            home=home,
            store=generations.store,
            generations=generations,
            loader=GenerationLoader(
                generations, plugins=plugins, device=device, backbones=backbones
            ),
            plugins=plugins,
            flags=flags,
            device=device,
            cache=cache_of(home) / "features",
            pool=pool,
        )

    @property
    def settings(self) -> Settings:
        """Flags, lock and project settings, merged; the lock is that of the current generation."""
        return load_settings(flags=self.flags, lock=read_lock(self.home / LOCK))

    def require_current(self, *, instead: str = "") -> int:
        """Return the number of the current generation.

        Args:
            instead: An alternative to composing, for the message.

        Raises:
            MissingError: If nothing has been composed in this home.
        """
        current = self.generations.current()
        if current is None:
            raise nothing_composed(self.home, instead=instead)
        return current

    def plugins_of(self, model: ComposedModel) -> Plugins:
        """Return the plugins that a generation was made with."""
        if model.generation is None:
            return self.plugins
        return self.plugins.only(self.generations.load(model.generation).providers)

    def encoder(self, model: ComposedModel, *, progress: Progress | None = None) -> Encode:
        """Return a function texts → h, through the feature cache of a composition's backbone."""
        return cached_encode(model.backbone, model.fingerprint, self.cache, progress)

    def prefetch(
        self, model: ComposedModel, texts: Sequence[str], *, progress: Progress | None = None
    ) -> None:
        """Let the pool encode texts, and a generation's cards, before they are needed.

        This does nothing without a pool, or if a plugin made the backbone: workers build only
        built-in parts, from the bytes in the store.
        """
        if self.pool is None or model.generation is None:
            return
        composition = self.generations.load(model.generation)
        record, device = composition.backbone, composition.settings.get("device") or self.device
        files = self.store.backbone(record.digest, name=record.id)
        plugins = self.plugins_of(model)
        if backbone_makers(files.manifest, plugins=plugins, device=str(device)):
            return
        cards = [r.text for card in model.cards.values() for r in card.rows]
        self.pool.encode(
            [*cards, *texts],
            backbone=model.backbone,
            files=files,
            folder=self.cache,
            progress=progress,
        )
