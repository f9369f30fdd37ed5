"""Build the parts of a bus from verified bytes, and a composed model from the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import safetensors.torch
from torch import nn

from ...registry.environment.installed import audit_installed
from ...registry.errors import PluginError, suggest
from ...registry.package.checked import Checked
from ...registry.package.discover import Package
from ...registry.package.readers import BackboneFiles, ExpertFiles, read_backbone
from ..backbones.backbone import Backbone
from ..bus.bus import BACKBONE, Bus, BusConfig
from ..bus.experts import Expert, MappedExpert
from ..bus.nested import first_units
from ..plugins.manager import Plugins
from ..routers import KINDS
from ..routers.base import Router, as_router
from ..routers.cards import Card, read_card
from ..types import BackgroundRow, Row, parse_rows
from .canary import check_canary
from .composed import ComposedModel
from .conformal import Calibration
from .moments import Moments

RowT = TypeVar("RowT", BackgroundRow, Row)
Providers = dict[str, str]
"""Distribution → digest, for the plugins that provided a part of a composition."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedExpert:
    """An expert that passed every check: its bytes, its module and its card."""

    files: ExpertFiles
    expert: Expert
    card: Card


def make_backbone(
    files: BackboneFiles, *, plugins: Plugins, providers: Providers, device: str
) -> Backbone:
    """Make a backbone from verified bytes; its fingerprint is checked for any provider."""
    provider: Providers = {}
    backbone: Backbone = plugins.make(
        "redhost_make_backbone",
        what=f"backbone {files.manifest.id!r}",
        providers=provider,
        manifest=files.manifest,
        files=files.files,
        device=device,
    )
    providers |= provider
    if provider:  # the built-in factory verifies itself
        backbone.verify(files.manifest.fingerprint)
    return backbone


def make_expert(
    files: ExpertFiles, *, bus: BusConfig, plugins: Plugins, providers: Providers
) -> Checked[LoadedExpert]:
    """Make one expert, check its canary and read its card; return the violations, if any."""
    made = make_expert_module(files, bus=bus, plugins=plugins, providers=providers)
    if made.value is None:
        return Checked(None, made.violations)
    card = read_card(files.manifest, files.files, task=bus.task)
    return Checked(LoadedExpert(files=files, expert=made.value, card=card))


def make_expert_module(
    files: ExpertFiles, *, bus: BusConfig, plugins: Plugins, providers: Providers
) -> Checked[Expert]:
    """Make one expert and check its canary; return the violations, if any."""
    manifest, provider = files.manifest, Providers()
    expert = plugins.make(
        "redhost_make_expert",
        what=f"the form {manifest.form!r} of expert {manifest.id!r}",
        providers=provider,
        manifest=manifest,
        tensors=safetensors.torch.load(files.weights),
        files=files.files,
        bus=bus,
    )
    providers |= provider
    if not isinstance(expert, Expert):
        raise PluginError(
            f"plugin {min(provider)!r} made expert {manifest.id!r}",
            expected="a redhost.Expert",
            found=type(expert).__name__,
        )
    if files.rank:
        expert = first_units(expert, files.rank)
    if manifest.ported:
        fitted = safetensors.torch.load(files.files[manifest.ported.map.file])
        expert = MappedExpert(expert, A=fitted["A"].float(), c=fitted["c"].float())
    expert = expert.eval().requires_grad_(False)
    expert.reads_tap, expert.writes_tap = manifest.reads.tap, manifest.writes.tap
    expert.thresholds = manifest.thresholds or ()
    expert.span_rules = manifest.span_rules or ()
    # Cached rows depend on the weights, on the rank, and on the code of a plugin's form.
    cut = (f"rank {files.rank}",) if files.rank else ()
    expert.source = " ".join((files.digest, *cut, *provider.values()))
    wrong = check_canary(manifest, expert, files.canary, rank=files.rank)
    return Checked(None, (wrong,)) if wrong else Checked(expert)


def make_norm(*, bus: BusConfig, plugins: Plugins, providers: Providers) -> nn.Module:
    """Make the bus norm."""
    norm: nn.Module = plugins.make(
        "redhost_make_norm", what="the bus norm", providers=providers, bus=bus
    )
    return norm.eval().requires_grad_(False)


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
    known = sorted(k.kind for k in KINDS)
    router: nn.Module = plugins.make(
        "redhost_make_router",
        what=f"a router of kind {kind!r}",
        providers=providers,
        instead=lambda: (
            f"{suggest(kind.partition(':')[0], known)}Built in, for --router: {', '.join(known)}. "
        ),
        kind=kind,
        bus=bus,
        columns=columns,
        seed=seed,
    )
    return as_router(router, columns=columns).eval().requires_grad_(False)


def rows_of(files: BackboneFiles, kind: type[RowT]) -> tuple[RowT, ...]:
    """Return the backbone's background rows, or its held-out rows, depending on the type."""
    manifest, what = files.manifest, "background" if kind is BackgroundRow else "evaluation rows"
    ref = manifest.background if kind is BackgroundRow else manifest.evaluation
    if ref is None:
        return ()
    source = f"{what} of backbone {manifest.id!r}"
    return tuple(parse_rows(files.files[ref.file], kind, source=source))


def build_model(
    backbone: Backbone,
    *,
    norm: nn.Module,
    router: Router,
    experts: Mapping[str, Expert],
    columns: Sequence[str],
    cards: Mapping[str, Card],
    background: tuple[BackgroundRow, ...],
    evaluation: tuple[Row, ...],
    fingerprint: str,
    router_kind: str,
    seed: int,
    generation: int | None = None,
    calibration: Calibration | None = None,
    decline: float | None = None,
    moments: Moments | None = None,
) -> ComposedModel:
    """Put a backbone and all parts on one bus.

    Args:
        backbone: The backbone, with the layout of what the experts read (`with_layout`).
        norm: h → z.
        router: z → logits over the columns; it may be trained afterwards.
        experts: The expert modules on the bus, by id.
        columns: The router's columns: the experts, and the backbone if it may be chosen.
        cards: The experts' routing cards, by id.
        background: The backbone's background card.
        evaluation: The backbone's held-out rows.
        fingerprint: The backbone's fingerprint.
        router_kind: The router's kind.
        seed: The seed of the router's training.
        generation: The number it was published under, if any.
        calibration: Scores of gate rows, if there are any.
        decline: ε: the share of the experts' own texts that may be declined, 0–1.
        moments: The moments of the experts' cards.
    """
    bus = Bus(
        norm=norm,
        router=router,
        experts=experts,
        classifier=backbone.classifier,
        labels=backbone.labels,
        task=backbone.task,
        backbone_column=BACKBONE in columns,
        layout=backbone.layout,
    )
    return ComposedModel(
        backbone=backbone,
        bus=bus.eval().requires_grad_(False),
        cards=cards,
        background=background,
        evaluation=evaluation,
        fingerprint=fingerprint,
        router_kind=router_kind,
        seed=seed,
        generation=generation,
        calibration=calibration,
        decline=decline,
        moments=moments,
    )


def read_package(package: Package) -> BackboneFiles:
    """Read a backbone's package and verify every byte.

    Raises:
        ContractError: If anything is wrong with it.
    """
    who = f"backbone package {package}"
    files = read_backbone(package).unwrap(who)
    for wrong in audit_installed(package):
        raise wrong.error(who)
    return files
