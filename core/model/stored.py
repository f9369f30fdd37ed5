"""A published generation, built from the bytes in the store: fully, or with experts on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast
from weakref import WeakValueDictionary

import safetensors.torch
from torch import Tensor, nn

from ...registry.errors import IntegrityError, short
from ...registry.home.composition import Composition, Member
from ...registry.home.generations import Generations
from ...registry.home.store import Store
from ...registry.package.forms import INSIDE
from ...registry.package.readers import BackboneFiles, read_manifest
from ..backbones.backbone import Backbone
from ..backbones.bfloat16 import BF16
from ..backbones.interventions.layout import with_layout
from ..bus.bus import BusConfig
from ..bus.experts import Expert
from ..plugins.manager import Plugins
from ..routers.base import Router, load_router
from ..routers.cards import Card, read_card
from ..types import BackgroundRow, Row
from .build import (
    BACKBONES,
    FORMS,
    build_bus,
    make_backbone,
    make_combiner,
    make_expert_module,
    make_norm,
    make_router,
    rows_of,
)
from .composed import ComposedModel
from .conformal import CALIBRATION, Calibration
from .lazy import LazyCards, LazyExpert, can_load_lazily
from .moments import MOMENTS, Moments
from .route import Chooser

BackboneKey = tuple[str, str, tuple[tuple[str, str], ...]]
"""The identity of a loaded backbone: digest of its bytes, device, digests of plugins."""

LoadedBackbones = WeakValueDictionary[BackboneKey, Backbone]
"""Backbones shared by loaders; one that no loaded generation uses is freed."""

StoredExpert = tuple[Expert, Callable[[], Card]]
"""An expert as built, and a function that reads its card."""


@dataclass(frozen=True, kw_only=True)
class StoredExperts:
    """The location of a generation's experts, and the configuration that builds them."""

    store: Store
    bus: BusConfig
    plugins: Plugins

    def load(self, member: Member) -> StoredExpert:
        """Read every byte of an expert and build it; its card is read again on access.

        Sums over wide features are tens of megabytes, and answering does not use them.

        Raises:
            IntegrityError: If the stored bytes are not those that were composed.
            ContractError: If it does not compute what its manifest promises.
        """
        files = self.store.expert(member.digest, name=member.id)
        expert = make_expert_module(files, bus=self.bus, plugins=self.plugins, providers={}).unwrap(
            f"stored expert {member.id!r}"
        )
        return expert, partial(self._card, member, segment=expert.card_segment)

    def defer(self, member: Member) -> StoredExpert:
        """Read only an expert's manifest; load it at once unless redhost alone makes it.

        An expert that acts inside the trunk is loaded at once as well.
        """
        read = read_manifest(self.store.file(member.digest, "expert.json"))
        manifest, digest = read.unwrap(f"stored {member.id!r}")
        if digest != member.digest:
            raise IntegrityError(
                f"stored {member.id!r} is damaged",
                expected=short(member.digest),
                found=short(digest),
                hint="Install the package if it is gone, then run 'redhost recompose --accept'.",
            )
        expert = LazyExpert(manifest, lambda: self.load(member)[0])
        # Whose form it is decides, not whether a plugin made any part at all: a plugin's router
        # asks for outputs as redhost's own does, and only redhost's forms are sure to be as a
        # manifest describes them. A plugin may have a form of its own, or replace one of these.
        replaced = self.plugins.providers(FORMS, manifest.form)
        if replaced or INSIDE in manifest.makers:
            return self.load(member)
        return expert, partial(self._card, member, segment=expert.card_segment)

    def _card(self, member: Member, *, segment: Mapping[str, Tensor]) -> Card:
        """Read an expert's card, and verify every byte."""
        files = self.store.expert(member.digest, name=member.id)
        return read_card(files.manifest, files.files, task=self.bus.task, segment=segment)


@dataclass(frozen=True)
class _Parts:
    """The parts of a generation that its router needs."""

    record: Composition
    files: BackboneFiles
    plugins: Plugins
    backbone: Backbone
    router: Router
    norm: nn.Module


class GenerationLoader:
    """A loader for generations of one home, which frees those that are no longer referenced.

    Args:
        generations: The published generations of the home, and its store.
        plugins: The plugins that make the parts.
        device: Where the trunk runs.
        backbones: Those of another loader, e.g. of another question: a shared backbone is loaded
            once, and a text is encoded once for both.
    """

    def __init__(
        self,
        generations: Generations,
        *,
        plugins: Plugins,
        device: str,
        backbones: LoadedBackbones | None = None,
    ) -> None:
        self.generations, self.store = generations, generations.store
        self.plugins, self.device = plugins, device
        self._loaded: WeakValueDictionary[tuple[int, bool], ComposedModel] = WeakValueDictionary()
        self.backbones = LoadedBackbones() if backbones is None else backbones

    def load(self, number: int, *, lazy: bool = False, store: Store | None = None) -> ComposedModel:
        """Return a generation, the same object while it is referenced.

        Args:
            number: The generation.
            lazy: Leave experts in the store until a text needs them, if the router picks few. A
                generation that is fully loaded already is returned as it is.
            store: The store to read from, which may hold what was read; by default the home's.
        """
        model = self._loaded.get((number, False))
        if model is None and lazy:
            model = self._loaded.get((number, True))
        if model is None:
            model = self._loaded[number, lazy] = self.read(number, lazy=lazy, store=store)
        return model

    def forget(self) -> None:
        """Drop all loaded objects, so that everything is read again from the store."""
        self._loaded.clear()
        self.backbones.clear()

    def read(self, number: int, *, lazy: bool = False, store: Store | None = None) -> ComposedModel:
        """Return a generation read, verified and built anew, even if it is loaded already.

        Args:
            number: The generation.
            lazy: Leave experts of built-in forms in the store until they are needed, if the router
                picks few. Damage is then reported only when an expert is needed.
            store: The store to read from, as for `load`. With one given, the generation is only
                compared with, and may be one that has been revoked.

        Raises:
            UnknownNameError: If there is no such generation.
            IntegrityError: If its record or stored bytes are not those that were composed.
            StoreError: If stored bytes are missing.
            PluginError: If a plugin that made a part is gone or has changed.
            ContractError: If a part of it is revoked.
        """
        parts = self._parts(number, store)
        record, plugins, backbone = parts.record, parts.plugins, parts.backbone
        bus, router = backbone.bus_config(), parts.router
        stored = StoredExperts(store=store or self.store, bus=bus, plugins=plugins)
        wait = lazy and can_load_lazily(router, len(record.experts))
        read = stored.defer if wait else stored.load
        members = {m.id: read(m) for m in record.experts}
        experts = {i: expert for i, (expert, _) in members.items()}
        wide = with_layout(backbone, experts)
        return ComposedModel(
            backbone=wide,
            bus=build_bus(
                wide,
                norm=parts.norm,
                router=router,
                experts=experts,
                columns=record.router.columns,
                combiner=make_combiner(bus=bus, plugins=plugins, providers={}),
            ),
            cards=LazyCards({i: card for i, (_, card) in members.items()}),
            background=rows_of(parts.files, BackgroundRow),
            evaluation=rows_of(parts.files, Row),
            fingerprint=record.backbone.fingerprint,
            router_kind=record.router.kind,
            seed=record.router.seed,
            generation=number,
            calibration=Calibration.load(self.generations.file(record, CALIBRATION))
            if CALIBRATION in record.files  # no card may have gate rows
            else None,
            decline=cast("float | None", record.settings.get("decline")),
            moments=Moments.load(self.generations.file(record, MOMENTS)),
            digests={m.id: m.digest for m in record.experts},
        )

    def chooser(self, number: int) -> Chooser:
        """Return the router of a generation for routing alone, read anew without any expert.

        Args:
            number: The generation.

        Raises:
            UsageError: If its router queries experts.
            RedhostError: As for `read`.
        """
        parts = self._parts(number, None)
        return Chooser(
            backbone=parts.backbone,
            norm=parts.norm,
            router=parts.router,
            columns=parts.record.router.columns,
            generation=number,
        )

    def _parts(self, number: int, store: Store | None) -> _Parts:
        """Read the parts of a generation that its router needs."""
        record = self.generations.load(number)
        if store is None and (refusal := self.generations.refusal(record)):
            raise refusal
        router_bytes = self.generations.file(record, "router.safetensors")
        plugins = self.plugins.only(record.providers)
        files = (store or self.store).backbone(record.backbone.digest, name=record.backbone.id)
        # The engine it was made on: another one computes other bits, while torch may be anywhere.
        engine = self.device == BF16 or bool(self.plugins.providers(BACKBONES, self.device))
        device = str(record.settings.get("device") or ("cpu" if engine else self.device))
        key = (files.digest, device, tuple(sorted(record.providers.items())))
        backbone = self.backbones.get(key)
        if backbone is None:
            backbone = self.backbones[key] = make_backbone(
                files, plugins=plugins, providers={}, device=device
            )
        bus = backbone.bus_config()
        router = make_router(
            record.router.kind,
            bus=bus,
            columns=record.router.columns,
            seed=record.router.seed,
            plugins=plugins,
            providers={},
        )
        load_router(router, safetensors.torch.load(router_bytes))
        norm = make_norm(bus=bus, plugins=plugins, providers={})
        return _Parts(record, files, plugins, backbone, router, norm)
