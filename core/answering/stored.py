"""A published generation, built from the bytes in the store: all of it, or what is needed."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial

from torch import nn

from ...registry.composition import Composition, Member
from ...registry.errors import IntegrityError, short
from ...registry.files import BackboneFiles, ExpertFiles, read_backbone, read_expert, read_manifest
from ...registry.store import Store
from ...registry.violations import Violation
from ..backbones.backbone import Backbone
from ..backbones.graft import Tapping
from ..bus import BusConfig
from ..experts import Expert
from ..extending.assemble import (
    Attached,
    Placed,
    Providers,
    background_of,
    evaluation_of,
    load_router,
    make_backbone,
    make_bus,
    make_expert,
    make_part,
    make_router,
    sound,
    with_layout,
)
from ..extending.plugins import Plugins
from ..learning.cards import Card, read_card
from .composed import Composed
from .lazy import LazyCards, LazyExpert, may_wait

__all__ = ["BackboneKey", "from_generation"]

BackboneKey = tuple[str, str, tuple[tuple[str, str], ...]]
"""What makes two loaded backbones the same: digest of the bytes, device, digests of plugins."""


@dataclass(frozen=True, kw_only=True)
class _Shelf:
    """Where the experts of a generation are, and what they are built with."""

    store: Store
    bus: BusConfig
    plugins: Plugins

    def files(self, member: Member) -> ExpertFiles:
        """Read every byte of an expert and check that it is the one that was composed."""
        found = read_expert(self.store.get(member.digest))
        return sound(found, member.id, digest=member.digest)

    def attached(self, member: Member) -> Attached:
        """Build an expert, card and all."""
        made = make_expert(
            self.files(member), bus=self.bus, plugins=self.plugins, providers=Providers()
        )
        if isinstance(made, Violation):
            raise made.error(f"stored expert {member.id!r}")
        return made

    def expert(self, member: Member) -> Expert:
        """Build an expert without its card."""
        files = self.files(member)
        made = make_part(files, bus=self.bus, plugins=self.plugins, providers=Providers())
        if isinstance(made, Violation):
            raise made.error(f"stored expert {member.id!r}")
        return made

    def card(self, member: Member) -> Card:
        """Read an expert's card."""
        files = self.files(member)
        return read_card(files.manifest, files.files, task=self.bus.task)

    def waiting(self, member: Member) -> Placed:
        """Read an expert's manifest; one that taps the trunk is built at once."""
        found = read_manifest(self.store.file(member.digest, "expert.json"))
        if isinstance(found, Violation):
            raise found.error(f"stored {member.id!r}")
        manifest, digest = found
        if digest != member.digest:
            raise IntegrityError(
                f"stored {member.id!r} is damaged",
                expected=short(member.digest),
                found=short(digest),
                hint="Install the package again and run 'redhost recompose'.",
            )
        expert = LazyExpert(manifest, partial(self.expert, member))
        tapping = Tapping(expert=expert, reads=manifest.reads.tap, writes=manifest.writes.tap)
        return self.attached(member) if tapping.taps else _Waiting(tapping=tapping)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiting:
    """An expert that is not built yet."""

    tapping: Tapping


def from_generation(
    record: Composition,
    *,
    store: Store,
    router_bytes: bytes,
    plugins: Plugins,
    device: str,
    lazy: bool = False,
    shared: MutableMapping[BackboneKey, Backbone] | None = None,
) -> Composed:
    """Load a published generation from stored bytes; everything is checked again on the way.

    Args:
        record: The generation's record.
        store: Where the bytes of backbone and experts are.
        router_bytes: The router's weights.
        plugins: Who makes the parts; only those that made them when it was composed.
        device: Where the trunk runs.
        lazy: Leave experts in the store until they are asked, where the router asks few. No
            plugin may have made a part: only built-in experts are what their manifest says.
        shared: Backbones already loaded, to take from and add to; None shares none.

    Raises:
        IntegrityError: If stored bytes are not those that were composed.
        PluginError: If a plugin that made a part is gone or has changed.
        StoreError: If stored bytes are missing.
    """
    plugins, providers = plugins.only(record.providers), Providers()
    backbone, files = _backbone(
        record, store=store, plugins=plugins, device=device, shared={} if shared is None else shared
    )
    router = make_router(
        record.router.kind,
        bus=backbone.bus_config(),
        columns=record.router.columns,
        seed=record.router.seed,
        plugins=plugins,
        providers=providers,
    )
    load_router(router, router_bytes)
    shelf = _Shelf(store=store, bus=backbone.bus_config(), plugins=plugins)
    placed, cards = _experts(record, shelf, router=router, lazy=lazy)
    backbone = with_layout(backbone, placed)
    return Composed(
        backbone=backbone,
        bus=make_bus(
            backbone, placed, router, record.router.columns, plugins=plugins, providers=providers
        ),
        cards=cards,
        background=background_of(files),
        evaluation=evaluation_of(files),
        fingerprint=record.backbone.fingerprint,
        router_kind=record.router.kind,
        seed=record.router.seed,
        generation=record.number,
    )


def _experts(
    record: Composition, shelf: _Shelf, *, router: nn.Module, lazy: bool
) -> tuple[Mapping[str, Placed], Mapping[str, Card]]:
    """Return the experts and their cards by id, built or waiting."""
    members = record.experts
    if lazy and not record.providers and may_wait(router, experts=len(members)):
        cards = LazyCards({m.id: partial(shelf.card, m) for m in members})
        return {m.id: shelf.waiting(m) for m in members}, cards
    attached = {m.id: shelf.attached(m) for m in members}
    return attached, {i: a.card for i, a in attached.items()}


def _backbone(
    record: Composition,
    *,
    store: Store,
    plugins: Plugins,
    device: str,
    shared: MutableMapping[BackboneKey, Backbone],
) -> tuple[Backbone, BackboneFiles]:
    """Return the backbone, one already loaded where its stored bytes are the same."""
    told = record.backbone
    files = sound(read_backbone(store.get(told.digest)), told.id, digest=told.digest)
    key = (files.digest, device, tuple(sorted(record.providers.items())))
    backbone = shared.get(key)
    if backbone is None:
        backbone = make_backbone(files, plugins=plugins, providers=Providers(), device=device)
        shared[key] = backbone
    return backbone, files
