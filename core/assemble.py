"""From checked bytes to the parts of a bus: backbone, experts with their canaries, routers."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TypeVar

import safetensors.torch
from torch import nn

from ..registry.composition import Composition
from ..registry.errors import IntegrityError, PluginError, short
from ..registry.files import BackboneFiles, ExpertFiles, read_backbone, read_expert
from ..registry.violations import Violation
from .backbone import Backbone
from .bus import BACKBONE, Bus, BusConfig
from .canary import check_canary
from .cards import Card, read_card
from .composed import Composed
from .experts import Expert
from .graft import Tapping, lay_out
from .plugins import Plugins
from .routers.base import Router
from .rows import BackgroundRow, Row, parse_rows

__all__ = [
    "Attached",
    "BackboneKey",
    "Providers",
    "background_of",
    "evaluation_of",
    "from_generation",
    "make_backbone",
    "make_expert",
    "make_router",
    "sound",
    "with_layout",
]

F = TypeVar("F", ExpertFiles, BackboneFiles)
Providers = dict[str, str]
"""Distribution → digest of the plugins that provided a part of a composition."""
BackboneKey = tuple[str, str, tuple[tuple[str, str], ...]]
"""What makes two loaded backbones the same: digest of the bytes, device, digests of plugins."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attached:
    """One expert that passed everything: its bytes, its module and its card."""

    files: ExpertFiles
    expert: Expert
    card: Card

    @property
    def tapping(self) -> Tapping:
        """Where it reads and writes."""
        manifest = self.files.manifest
        return Tapping(
            expert=self.expert,
            reads=manifest.reads.tap,
            writes=manifest.writes.tap,
            digest=self.files.digest,
        )


def make_backbone(
    files: BackboneFiles, *, plugins: Plugins, providers: Providers, device: str
) -> Backbone:
    """Make a backbone from checked bytes; its fingerprint is verified whoever makes it."""
    backbone, dist = plugins.make_named(
        "redhost_make_backbone",
        what=f"backbone {files.manifest.id!r}",
        manifest=files.manifest,
        files=files.files,
        device=device,
    )
    _note(dist, plugins, providers)
    made: Backbone = backbone
    if dist is not None:
        made.verify(files.manifest.fingerprint)
    return made


def make_expert(
    files: ExpertFiles, *, bus: BusConfig, plugins: Plugins, providers: Providers
) -> Attached | Violation:
    """Make one expert and let its canary sing; return what is wrong if it does not."""
    manifest = files.manifest
    expert, dist = plugins.make_named(
        "redhost_make_expert",
        what=f"the form {manifest.form!r} of expert {manifest.id!r}",
        manifest=manifest,
        tensors=safetensors.torch.load(files.weights),
        bus=bus,
    )
    _note(dist, plugins, providers)
    if not isinstance(expert, Expert):
        raise PluginError(
            f"plugin {dist!r} made expert {manifest.id!r}",
            expected="a redhost.Expert",
            found=type(expert).__name__,
        )
    expert = expert.eval().requires_grad_(False)
    violation = check_canary(manifest, expert, files.canary)
    if violation is not None:
        return violation
    card = read_card(manifest, files.files, task=bus.task)
    return Attached(files=files, expert=expert, card=card)


def make_norm(*, bus: BusConfig, plugins: Plugins, providers: Providers) -> nn.Module:
    """Make the bus norm."""
    norm, dist = plugins.make_named("redhost_make_norm", what="the bus norm", bus=bus)
    _note(dist, plugins, providers)
    made: nn.Module = norm.eval().requires_grad_(False)
    return made


def make_router(
    kind: str,
    *,
    bus: BusConfig,
    columns: tuple[str, ...],
    seed: int,
    plugins: Plugins,
    providers: Providers,
) -> nn.Module:
    """Make an untrained router of a kind."""
    router, dist = plugins.make_named(
        "redhost_make_router",
        what=f"a router of kind {kind!r}",
        kind=kind,
        bus=bus,
        columns=columns,
        seed=seed,
    )
    _note(dist, plugins, providers)
    made: nn.Module = router
    return made.eval().requires_grad_(False)


def background_of(files: BackboneFiles) -> tuple[BackgroundRow, ...]:
    """Return the rows of the backbone's background card."""
    ref = files.manifest.background
    if ref is None:
        return ()
    source = f"background of backbone {files.manifest.id!r}"
    return tuple(parse_rows(files.files[ref.file], BackgroundRow, source=source))


def evaluation_of(files: BackboneFiles) -> tuple[Row, ...]:
    """Return the backbone's held-out rows."""
    ref = files.manifest.evaluation
    if ref is None:
        return ()
    source = f"evaluation rows of backbone {files.manifest.id!r}"
    return tuple(parse_rows(files.files[ref.file], Row, source=source))


def from_generation(
    record: Composition,
    *,
    backbone_bytes: Mapping[str, bytes],
    expert_bytes: Mapping[str, Mapping[str, bytes]],
    router_bytes: bytes,
    plugins: Plugins,
    device: str,
    shared: MutableMapping[BackboneKey, Backbone] | None = None,
) -> Composed:
    """Load a published generation from stored bytes; everything is checked again on the way.

    Args:
        record: The generation's record.
        backbone_bytes: The stored backbone.
        expert_bytes: The stored experts by id.
        router_bytes: The router's weights.
        plugins: Who makes the parts; only those that made them when it was composed.
        device: Where the trunk runs.
        shared: Backbones already loaded, to take from and add to; None shares none.

    Raises:
        IntegrityError: If stored bytes are not those that were composed.
        PluginError: If a plugin that made a part is gone or has changed.
    """
    plugins, providers = plugins.only(record.providers), Providers()
    backbone_files = sound(
        read_backbone(backbone_bytes), record.backbone.id, digest=record.backbone.digest
    )
    key = (backbone_files.digest, device, tuple(sorted(record.providers.items())))
    backbone = None if shared is None else shared.get(key)
    if backbone is None:
        backbone = make_backbone(
            backbone_files, plugins=plugins, providers=providers, device=device
        )
    if shared is not None:
        shared[key] = backbone
    config = backbone.bus_config()
    attached = {}
    for member in record.experts:
        files = sound(read_expert(expert_bytes[member.id]), member.id, digest=member.digest)
        made = make_expert(files, bus=config, plugins=plugins, providers=providers)
        if isinstance(made, Violation):
            raise made.error(f"stored expert {member.id!r}")
        attached[member.id] = made
    router = make_router(
        record.router.kind,
        bus=config,
        columns=record.router.columns,
        seed=record.router.seed,
        plugins=plugins,
        providers=providers,
    )
    load_router(router, router_bytes)
    backbone = with_layout(backbone, attached)
    return Composed(
        backbone=backbone,
        bus=make_bus(
            backbone, attached, router, record.router.columns, plugins=plugins, providers=providers
        ),
        cards={i: a.card for i, a in attached.items()},
        background=background_of(backbone_files),
        evaluation=evaluation_of(backbone_files),
        fingerprint=record.backbone.fingerprint,
        router_kind=record.router.kind,
        seed=record.router.seed,
        generation=record.number,
    )


def with_layout(backbone: Backbone, attached: Mapping[str, Attached]) -> Backbone:
    """Return the backbone that also computes what these experts read inside the trunk."""
    layout = lay_out(backbone, {i: a.tapping for i, a in attached.items()})
    return replace(backbone, layout=layout) if layout.chunks else backbone


def make_bus(
    backbone: Backbone,
    attached: Mapping[str, Attached],
    router: nn.Module,
    columns: tuple[str, ...],
    *,
    plugins: Plugins,
    providers: Providers,
) -> Bus:
    """Put the parts on one bus."""
    bus = Bus(
        norm=make_norm(bus=backbone.bus_config(), plugins=plugins, providers=providers),
        router=router,
        experts={i: a.tapping.part for i, a in attached.items()},
        classifier=backbone.classifier,
        labels=backbone.labels,
        task=backbone.task,
        backbone_column=BACKBONE in columns,
        layout=backbone.layout,
    )
    return bus.eval().requires_grad_(False)


def load_router(router: nn.Module, data: bytes) -> None:
    """Set a router's weights from a safetensors file."""
    tensors = safetensors.torch.load(data)
    if isinstance(router, Router):
        router.load_tensors(tensors)
    else:
        router.load_state_dict(tensors)


def _note(dist: str | None, plugins: Plugins, providers: Providers) -> None:
    if dist is not None:
        providers[dist] = plugins.digest(dist)


def sound(files: F | tuple[Violation, ...], who: str, *, digest: str) -> F:
    """Return files read from the store, if they are those of this digest.

    Raises:
        IntegrityError: If they are not, or cannot be read as a package any more.
    """
    if isinstance(files, tuple):
        raise files[0].error(f"stored {who!r}")
    if files.digest != digest:
        raise IntegrityError(
            f"stored {who!r} is damaged",
            expected=short(digest),
            found=short(files.digest),
            hint="Install the package again and run 'redhost recompose'.",
        )
    return files
