"""Prepare a recompose: read, check and build everything that may join, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...registry.environment.status import check_packages
from ...registry.home.composition import Composition
from ...registry.package.checked import Violation
from ...registry.package.discover import from_folder
from ...registry.package.manifest import BackboneManifest
from ..backbones.backbone import Backbone
from ..backbones.feature_cache import cached_encode
from ..backbones.interventions.layout import with_layout
from ..bus.tasks import make_task
from ..model.build import (
    LoadedExpert,
    Providers,
    make_backbone,
    read_package,
    rows_of,
)
from ..model.composed import ComposedModel
from ..model.verify import CachedBusEncoder, check_live
from ..plugins.manager import Plugins
from ..session import Prefetcher
from ..types import BackgroundRow, Progress, Row
from .attribution import compose_without_faulty
from .candidates import load_candidates
from .options import RecomposeInputs, RecomposeOptions
from .ranks import at_ranks
from .recompose import RecomposeResult, recompose
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
    statuses = check_packages([from_folder(p) for p in experts], backbone=files.manifest)
    wanted = options or RecomposeOptions(router=make_task(files.manifest.task).unit.router)
    selection = at_ranks(
        Selection(package=package, files=files, statuses=statuses), given=wanted.ranks or {}
    )
    made_by = plugins or Plugins()

    def attempt(chosen: Selection) -> RecomposeResult:
        inputs = prepare_composition(chosen, plugins=made_by, cache=cache, device=device)
        return recompose(inputs, wanted)

    return compose_without_faulty(selection, attempt, composed={})


def open_backbone(
    folder: Path, *, plugins: Plugins | None = None, device: str = "cpu"
) -> tuple[BackboneManifest, Backbone, tuple[BackgroundRow, ...]]:
    """Open a backbone package's folder: its manifest, the backbone, its background card."""
    files = read_package(from_folder(folder))
    made = make_backbone(files, plugins=plugins or Plugins(), providers={}, device=device)
    return files.manifest, made, rows_of(files, BackgroundRow)


def prepare_composition(
    selection: Selection,
    *,
    plugins: Plugins,
    cache: Path | None,
    device: str,
    record: Composition | None = None,
    previous: ComposedModel | None = None,
    progress: Progress | None = None,
    pool: Prefetcher | None = None,
) -> RecomposeInputs:
    """Build the backbone and every expert that passes.

    Args:
        selection: The backbone, and the experts with their static checks.
        plugins: The plugins that make the parts.
        cache: The folder of the feature cache.
        device: The device of the trunk.
        record: The current generation's record.
        previous: The current generation, loaded.
        progress: Called with (texts encoded, texts to encode).
        pool: Encodes the cards' texts in advance.
    """
    files, providers = selection.files, Providers()
    by_plugin = bool(plugins.providers("redhost_make_backbone"))
    if previous and record and not by_plugin and _is_of(record, files.digest, device=device):
        backbone = replace(previous.backbone, layout=None)  # the same bytes, verified already
    else:
        backbone = make_backbone(files, plugins=plugins, providers=providers, device=device)
    encode = cached_encode(backbone, files.manifest.fingerprint, cache, progress)
    background, read = rows_of(files, BackgroundRow), CachedBusEncoder(backbone, encode=encode)
    candidates = load_candidates(
        selection,
        previous=record,
        bus=backbone.bus_config(),
        plugins=plugins,
        providers=providers,
        verify=partial(_verify, backbone=backbone, background=background, read=read, record=record),
    )
    if pool is not None and not by_plugin:
        texts = [r.text for e in candidates.experts.values() for r in e.card.rows]
        pool.encode(texts, backbone=backbone, files=files, folder=cache, progress=progress)
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
        record=record,
        previous=previous,
        encode_previous=cached_encode(previous.backbone, previous.fingerprint, cache, progress)
        if previous
        else None,
    )


def _is_of(record: Composition, digest: str, *, device: str) -> bool:
    """Return whether a generation was made on the backbone with this digest, on no other engine."""
    made_on = record.settings.get("device")
    return record.backbone.digest == digest and made_on in {None, device}


def _verify(
    expert: LoadedExpert,
    *,
    backbone: Backbone,
    background: Sequence[BackgroundRow],
    read: CachedBusEncoder,
    record: Composition | None,
) -> Violation | None:
    learnt = record is not None and expert.files.digest in record.members().values()
    return check_live(expert, backbone, background, read=read, learnt=learnt)
