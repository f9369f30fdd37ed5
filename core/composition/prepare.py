"""Prepare a recompose: read, check and build everything that may join, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...registry.environment.status import check_packages
from ...registry.package.discover import from_folder
from ...registry.package.manifest import BackboneManifest
from ...registry.package.readers import BackboneFiles
from ..backbones.backbone import Backbone
from ..backbones.feature_cache import cached_encode
from ..backbones.interventions.layout import with_layout
from ..model.build import (
    Providers,
    backbone_makers,
    built_experts,
    make_backbone,
    read_package,
    rows_of,
)
from ..model.verify import CachedBusEncoder, check_live
from ..plugins.manager import Plugins
from ..session import Prefetcher
from ..types import BackgroundRow, Progress, Row
from .attribution import compose_without_faulty
from .candidates import load_candidates
from .options import Previous, RecomposeInputs, RecomposeOptions
from .recompose import RecomposeResult, attempt
from .refusal import accepted
from .select import Selection


def compose(
    backbone: Path,
    experts: Sequence[Path],
    *,
    options: RecomposeOptions | None = None,
    plugins: Plugins | None = None,
    cache: Path | None = None,
    device: str = "cpu",
) -> RecomposeResult:
    """Compose packages from their folders, in memory; install and publish nothing.

    Args:
        backbone: The backbone package's folder.
        experts: The expert packages' folders, in any order.
        options: Router, level and seed; by default the default router with seed 0.
        plugins: The plugins that make the parts; by default those of the environment.
        cache: The folder of the feature cache; None caches nothing.
        device: The device of the trunk.
    """
    package = from_folder(backbone)
    files = read_package(package)
    plugins = plugins or Plugins()
    wanted = options or RecomposeOptions(router=plugins.task(files.manifest.task).unit.router)
    selection = Selection(
        package=package,
        files=files,
        statuses=check_packages([from_folder(p) for p in experts], backbone=files.manifest),
    )
    load = partial(
        prepare_composition, plugins=plugins, cache=cache, device=device, previous=Previous()
    )
    return accepted(
        compose_without_faulty(selection, lambda x: attempt(load(x), wanted), composed={})
    )


def open_backbone(
    folder: Path, *, plugins: Plugins | None = None, device: str = "cpu"
) -> tuple[BackboneManifest, Backbone, tuple[BackgroundRow, ...]]:
    """Open a backbone package's folder: its manifest, the backbone, its background card."""
    files = read_package(from_folder(folder))
    return (
        files.manifest,
        make_backbone(files, plugins=plugins or Plugins(), providers={}, device=device),
        rows_of(files, BackgroundRow),
    )


def prepare_composition(
    selection: Selection,
    *,
    plugins: Plugins,
    cache: Path | None,
    device: str,
    previous: Previous,
    progress: Progress | None = None,
    pool: Prefetcher | None = None,
) -> RecomposeInputs:
    """Build the backbone and every expert that passes.

    Args:
        selection: The backbone, and the experts with their static checks.
        plugins: The plugins that make the parts.
        cache: The folder of the feature cache.
        device: The device of the trunk.
        previous: The current generation.
        progress: Called with (texts encoded, texts to encode).
        pool: Encodes the cards' texts in advance.
    """
    files, providers = selection.files, Providers()
    by_plugin = bool(backbone_makers(files.manifest, plugins=plugins, device=device))
    verified = None if by_plugin else _verified_before(files, previous, device=device)
    backbone = verified or make_backbone(files, plugins=plugins, providers=providers, device=device)
    encode = cached_encode(backbone, files.manifest.fingerprint, cache, progress)
    background, read = rows_of(files, BackgroundRow), CachedBusEncoder(backbone, encode=encode)
    candidates = load_candidates(
        selection,
        previous=previous.record,
        bus=backbone.bus_config(),
        plugins=plugins,
        providers=providers,
        verify=partial(check_live, backbone=backbone, background=background, read=read),
        built=built_experts(previous.model),
    )
    if pool is not None and not by_plugin:
        texts = [r.text for e in candidates.experts.values() for r in e.card.rows]
        pool.encode(texts, backbone=backbone, files=files, folder=cache, progress=progress)
    # h̃ is known only now: an expert may read inside the backbone.
    wide = with_layout(backbone, {i: e.expert for i, e in candidates.experts.items()})
    if wide is not backbone:
        encode = cached_encode(wide, files.manifest.fingerprint, cache, progress)
    return RecomposeInputs(
        package=selection.package,
        files=files,
        backbone=wide,
        background=background,
        evaluation=rows_of(files, Row),
        candidates=candidates,
        plugins=plugins,
        providers=providers,
        encode=encode,
        previous=previous,
        encode_previous=None
        if previous.model is None
        else cached_encode(previous.model.backbone, previous.model.fingerprint, cache, progress),
    )


def _verified_before(files: BackboneFiles, previous: Previous, *, device: str) -> Backbone | None:
    """Return the current generation's backbone, if it has these bytes and is on no other engine."""
    record = previous.record
    if record is None or previous.model is None or record.backbone.digest != files.digest:
        return None
    # Another engine gives other bits: what was verified on one says nothing of the other.
    if record.settings.get("device") not in {None, device}:
        return None
    return replace(previous.model.backbone, layout=None)
