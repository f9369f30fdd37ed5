"""The context of training: the backbone to train on, opened once for many trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.feature_cache import cached_encode
from redhost.core.model.build import make_backbone, read_package, rows_of
from redhost.core.plugins.manager import Plugins
from redhost.core.types import BackgroundRow, Progress
from redhost.registry.package.discover import Package, from_folder
from redhost.registry.package.manifest import BackboneManifest
from redhost.registry.package.readers import BackboneFiles


@dataclass(frozen=True, kw_only=True, eq=False)
class AuthoringContext:
    """The context of training.

    Attributes:
        backbone: The frozen backbone.
        manifest: Its manifest.
        background: Its background card.
        encode: Texts → h, through the feature cache.
        cache: The folder of the feature cache.
        plugins: The plugins that train other forms; by default the environment's.
    """

    backbone: Backbone
    manifest: BackboneManifest
    background: tuple[BackgroundRow, ...]
    encode: Callable[[Sequence[str]], Tensor]
    cache: Path | None = None
    plugins: Plugins = field(default_factory=Plugins)


def open_for_training(
    source: Path | Package | BackboneFiles,
    *,
    cache: Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    plugins: Plugins | None = None,
) -> AuthoringContext:
    """Open a backbone for training.

    Args:
        source: An installed package, a package's folder, or its files, already checked.
        cache: The folder of the feature cache; None disables it.
        device: The device of the trunk.
        progress: Called with (texts encoded, texts to encode).
        plugins: The plugins that make it; by default the environment's.
    """
    source = from_folder(source) if isinstance(source, Path) else source
    files = read_package(source) if isinstance(source, Package) else source
    plugins = plugins or Plugins()
    backbone = make_backbone(files, plugins=plugins, providers={}, device=device)
    return AuthoringContext(
        backbone=backbone,
        manifest=files.manifest,
        background=rows_of(files, BackgroundRow),
        encode=cached_encode(backbone, files.manifest.fingerprint, cache, progress),
        cache=cache,
        plugins=plugins,
    )


def open_backbone(
    folder: Path, *, plugins: Plugins | None = None, device: str = "cpu"
) -> tuple[BackboneManifest, Backbone, tuple[BackgroundRow, ...]]:
    """Open a backbone package's folder: its manifest, the backbone, its background card."""
    files = read_package(from_folder(folder))
    backbone = make_backbone(files, plugins=plugins or Plugins(), providers={}, device=device)
    return files.manifest, backbone, rows_of(files, BackgroundRow)
