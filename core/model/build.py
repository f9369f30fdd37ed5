"""Build the parts of a bus from verified bytes, and a composed model from the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import safetensors.torch
from torch import nn

from ...registry.environment.installed import audit_installed
from ...registry.errors import ContractError, suggest
from ...registry.package.checked import Checked, violations_in
from ...registry.package.discover import Package
from ...registry.package.manifest import BackboneManifest
from ...registry.package.readers import BackboneFiles, ExpertFiles, read_backbone
from ..backbones.backbone import Backbone
from ..backbones.interventions.layout import bus_part
from ..bus.bus import BACKBONE, Bus, BusConfig
from ..bus.experts import Expert, InTrunkExpert, MappedExpert
from ..plugins.hooks import COMBINER, NORM, PLUGIN_ROUTERS
from ..plugins.manager import Plugins
from ..routers.base import Router, as_router
from ..routers.cards import Card, read_card
from ..types import BackgroundRow, Row, parse_rows
from .canary import check_canary
from .composed import ComposedModel

RowT = TypeVar("RowT", BackgroundRow, Row)
BuiltExperts = Mapping[str, Expert]
"""`Expert.source` → an expert that is built, and whose canary is checked."""

Providers = dict[str, str]
"""Distribution → digest, for the plugins that provided a part of a composition."""


BACKBONES, NORMS, ROUTERS, FORMS, COMBINERS = (
    f"redhost_register_{parts}" for parts in ("backbones", "norms", "routers", "forms", "combiners")
)
"""The hook that registers factories of each part."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedExpert:
    """An expert that passed every check: its bytes, its module and its card."""

    files: ExpertFiles
    expert: Expert
    card: Card


def backbone_name(manifest: BackboneManifest, *, plugins: Plugins, device: str) -> str:
    """Return the name of a backbone's factory: that of the device, where it has one of its own."""
    return device if plugins.providers(BACKBONES, device) else manifest.base.kind


def backbone_makers(manifest: BackboneManifest, *, plugins: Plugins, device: str) -> Sequence[str]:
    """Return the distributions whose plugins make a backbone; none for the built-in ones."""
    return tuple(
        plugins.providers(BACKBONES, backbone_name(manifest, plugins=plugins, device=device))
    )


def make_backbone(
    files: BackboneFiles, *, plugins: Plugins, providers: Providers, device: str
) -> Backbone:
    """Make a backbone from verified bytes; its fingerprint is checked for any provider."""
    manifest, provider = files.manifest, Providers()
    plugins.task(manifest.task, resolution=manifest.resolution, providers=providers)
    backbone = plugins.make(
        BACKBONES,
        backbone_name(manifest, plugins=plugins, device=device),
        Backbone,
        what=f"backbone {manifest.id!r}",
        providers=provider,
        manifest=manifest,
        files=files.files,
        device=device,
    )
    providers |= provider
    if provider:  # the built-in factory verifies itself
        backbone.verify(manifest.fingerprint)
    return backbone


def make_expert(
    files: ExpertFiles,
    *,
    bus: BusConfig,
    plugins: Plugins,
    providers: Providers,
    built: BuiltExperts = MappingProxyType({}),
) -> Checked[LoadedExpert]:
    """Make one expert, check its canary and read its card; return the violations, if any.

    One of the built experts is taken as it is, if it has these bytes, and what would build it
    again is what built it.
    """
    module = make_expert_module(files, bus=bus, plugins=plugins, providers=providers, built=built)
    if module.value is None:
        return Checked(None, module.violations)
    segment = module.value.card_segment
    card = read_card(files.manifest, files.files, task=bus.task, segment=segment)
    return Checked(LoadedExpert(files=files, expert=module.value, card=card))


def make_expert_module(
    files: ExpertFiles,
    *,
    bus: BusConfig,
    plugins: Plugins,
    providers: Providers,
    built: BuiltExperts = MappingProxyType({}),
) -> Checked[Expert]:
    """Make one expert and check its canary, unless it is built; return the violations, if any."""
    manifest, provider = files.manifest, Providers()
    for name in manifest.makers:
        provider |= plugins.providers(FORMS, name)
    # What it is made of: its bytes, and the code of a plugin's form. Cached rows depend on both.
    source = " ".join((files.digest, *provider.values()))
    if source in built:
        providers |= provider
        return Checked(built[source])
    expert: Any = None
    tensors = safetensors.torch.load(files.weights)
    try:
        for name in manifest.makers:
            expert = plugins.make(
                FORMS,
                name,
                Expert,
                what=f"the form {name!r} of expert {manifest.id!r}",
                manifest=manifest,
                tensors=tensors,
                files=files.files,
                bus=bus,
                expert=expert,
            )
    except ContractError as e:
        return Checked(None, violations_in(e, code="not_computable", field="form"))
    providers |= provider
    if manifest.ported and not provider:  # a plugin's form reads the map itself
        fitted = safetensors.torch.load(files.files[manifest.ported.map.file])
        expert = MappedExpert(expert, A=fitted["A"].float(), c=fitted["c"].float())
    expert = expert.eval().requires_grad_(False)
    expert.described_by(manifest)
    expert.source = source
    misfit = check_canary(manifest, expert, files.canary)
    return Checked(None, (misfit,)) if misfit else Checked(expert)


def built_experts(model: ComposedModel | None) -> BuiltExperts:
    """Return the experts of a composition, as they were before they were put on its bus."""
    parts = model.bus.parts() if model else []
    experts = [part.step if isinstance(part, InTrunkExpert) else part for part in parts]
    return {expert.source: expert for expert in experts}


def make_norm(*, bus: BusConfig, plugins: Plugins, providers: Providers) -> nn.Module:
    """Make the bus norm."""
    norm = plugins.make(NORMS, NORM, nn.Module, what="the bus norm", providers=providers, bus=bus)
    return norm.eval().requires_grad_(False)


def make_combiner(*, bus: BusConfig, plugins: Plugins, providers: Providers) -> nn.Module:
    """Make what combines the experts' outputs; the bus freezes it."""
    return plugins.make(
        COMBINERS, COMBINER, nn.Module, what="the combiner", providers=providers, bus=bus
    )


def make_router(
    kind: str,
    *,
    bus: BusConfig,
    columns: tuple[str, ...],
    seed: int,
    plugins: Plugins,
    providers: Providers,
) -> Router:
    """Make an untrained router of a kind."""
    name = kind.partition(":")[0]
    router = plugins.make(
        ROUTERS,
        name,
        nn.Module,
        what=f"a router of kind {kind!r}",
        providers=providers,
        instead=partial(_kinds_meant, name, plugins),
        kind=kind,
        bus=bus,
        columns=columns,
        seed=seed,
    )
    return as_router(router, columns=columns).eval().requires_grad_(False)


def _kinds_meant(name: str, plugins: Plugins) -> str:
    kinds = plugins.names(ROUTERS)
    return f"{suggest(name, (*kinds, *PLUGIN_ROUTERS))}Known, for --router: {', '.join(kinds)}. "


def rows_of(files: BackboneFiles, kind: type[RowT]) -> tuple[RowT, ...]:
    """Return the backbone's background rows, or its held-out rows, depending on the type."""
    manifest, what = files.manifest, "background" if kind is BackgroundRow else "evaluation rows"
    ref = manifest.background if kind is BackgroundRow else manifest.evaluation
    if ref is None:
        return ()
    source = f"{what} of backbone {manifest.id!r}"
    return tuple(parse_rows(files.files[ref.file], kind, source=source))


def build_bus(
    backbone: Backbone,
    *,
    norm: nn.Module,
    router: Router,
    experts: Mapping[str, Expert],
    columns: Sequence[str],
    combiner: nn.Module | None = None,
) -> Bus:
    """Put all parts on one bus, frozen.

    Args:
        backbone: The backbone, with the layout of what the experts read (`with_layout`).
        norm: h → z.
        router: z → logits over the columns; it may be trained afterwards.
        experts: The experts by id.
        columns: The router's columns: the experts, and the backbone if it may be chosen.
        combiner: What combines the experts' outputs; by default the residual sum.
    """
    bus = Bus(
        backbone,
        norm=norm,
        router=router,
        experts={i: bus_part(expert, backbone) for i, expert in experts.items()},
        backbone_column=BACKBONE in columns,
        layout=backbone.layout,
        combiner=combiner,
    )
    return bus.eval().requires_grad_(False)


def read_package(package: Package) -> BackboneFiles:
    """Read a backbone's package and verify every byte.

    Raises:
        ContractError: If anything is wrong with it.
    """
    subject = f"backbone package {package}"
    files = read_backbone(package).unwrap(subject)
    for violation in audit_installed(package):
        raise violation.error(subject)
    return files
