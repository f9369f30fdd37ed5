"""From checked bytes to the parts of a bus: backbone, experts with their canaries, routers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import safetensors.torch
from torch import nn

from ...registry.errors import IntegrityError, PluginError, short, suggest
from ...registry.files import BackboneFiles, ExpertFiles
from ...registry.violations import Violation
from ..backbones.backbone import Backbone
from ..backbones.graft import Tapping, lay_out
from ..bus import BACKBONE, Bus, BusConfig
from ..canary import check_canary
from ..experts import Expert
from ..learning.cards import Card, read_card
from ..routers import KINDS
from ..routers.base import Router
from ..rows import BackgroundRow, Row, parse_rows
from .plugins import Plugins

__all__ = [
    "Attached",
    "Placed",
    "Providers",
    "background_of",
    "evaluation_of",
    "load_router",
    "make_backbone",
    "make_bus",
    "make_expert",
    "make_norm",
    "make_part",
    "make_router",
    "sound",
    "with_layout",
]

F = TypeVar("F", ExpertFiles, BackboneFiles)
Providers = dict[str, str]
"""Distribution → digest of the plugins that provided a part of a composition."""


class Placed(Protocol):
    """An expert as the bus takes it."""

    @property
    def tapping(self) -> Tapping:
        """The expert, and where it reads and writes."""
        ...


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
    """Make one expert, let its canary sing, read its card; return what is wrong, if anything."""
    expert = make_part(files, bus=bus, plugins=plugins, providers=providers)
    if isinstance(expert, Violation):
        return expert
    card = read_card(files.manifest, files.files, task=bus.task)
    return Attached(files=files, expert=expert, card=card)


def make_part(
    files: ExpertFiles, *, bus: BusConfig, plugins: Plugins, providers: Providers
) -> Expert | Violation:
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
    return check_canary(manifest, expert, files.canary) or expert


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
        instead=_other_kinds(kind),
        kind=kind,
        bus=bus,
        columns=columns,
        seed=seed,
    )
    _note(dist, plugins, providers)
    made: nn.Module = router
    return made.eval().requires_grad_(False)


def _other_kinds(kind: str) -> str:
    """Return which kinds `--router` takes without any plugin, the closest first."""
    known = sorted(k.kind for k in KINDS)
    return f"{suggest(kind.partition(':')[0], known)}Built in, for --router: {', '.join(known)}. "


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


def with_layout(backbone: Backbone, attached: Mapping[str, Placed]) -> Backbone:
    """Return the backbone that also computes what these experts read inside the trunk."""
    layout = lay_out(backbone, {i: a.tapping for i, a in attached.items()})
    return replace(backbone, layout=layout) if layout.chunks else backbone


def make_bus(
    backbone: Backbone,
    attached: Mapping[str, Placed],
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
