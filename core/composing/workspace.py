"""Lay out a recompose: read, check and build everything that may join, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...registry.composition import Composition
from ...registry.discover import Package, from_folder
from ...registry.files import BackboneFiles, read_backbone
from ...registry.installed import audit_installed
from ...registry.manifest import BackboneManifest
from ...registry.states import Listing, survey
from ..answering.composed import Composed
from ..backbones.backbone import Backbone
from ..backbones.features import FeatureCache
from ..encode import Encode
from ..engines.shards import Ahead
from ..extending.assemble import Providers, background_of, evaluation_of, make_backbone, with_layout
from ..extending.plugins import Plugins
from ..progress import Progress
from ..rows import BackgroundRow
from .bench import Bench, Order
from .candidates import gather
from .recompose import Outcome, recompose
from .verify import Quiet, check_live

__all__ = [
    "DEFAULT_ROUTERS",
    "Workspace",
    "cached",
    "compose",
    "open_backbone",
    "open_workspace",
    "read_package",
]

DEFAULT_ROUTERS = {"classification": "evidence", "generation": "causal", "regression": "evidence"}
"""By what is answered. `evidence` won on gate rows of real text; `causal` answers with one product
with the head, however many experts there are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Workspace:
    """The backbone's package and bytes, and the bench with all parts on it."""

    package: Package
    files: BackboneFiles
    bench: Bench


def compose(
    backbone: Path,
    experts: Sequence[Path],
    *,
    order: Order | None = None,
    plugins: Plugins | None = None,
    cache: Path | None = None,
    device: str = "cpu",
) -> Outcome:
    """Compose packages from their folders, in memory, nothing installed and nothing published.

    Args:
        backbone: The backbone package's folder.
        experts: The expert packages' folders, in any order.
        order: Router, level and seed; by default the default router from seed 0.
        plugins: Who makes the parts; by default the environment's.
        cache: Where features are remembered; None keeps nothing.
        device: Where the trunk runs.
    """
    package = from_folder(backbone)
    files = read_package(package)
    listings = survey([from_folder(p) for p in experts], backbone=files.manifest)
    workspace = open_workspace(
        package, files, listings, plugins=plugins or Plugins(), cache=cache, device=device
    )
    return recompose(workspace.bench, order or Order(router=DEFAULT_ROUTERS[files.manifest.task]))


def read_package(package: Package) -> BackboneFiles:
    """Read a backbone's package, every byte checked.

    Raises:
        ContractError: If anything is wrong with it.
    """
    files = read_backbone(package)
    wrong = files if isinstance(files, tuple) else audit_installed(package)
    if wrong or isinstance(files, tuple):
        raise wrong[0].error(f"backbone package {package.dist} {package.version}")
    return files


def open_backbone(
    folder: Path, *, plugins: Plugins | None = None, device: str = "cpu"
) -> tuple[BackboneManifest, Backbone, tuple[BackgroundRow, ...]]:
    """Open a backbone package's folder: its manifest, the backbone, its background card."""
    files = read_package(from_folder(folder))
    made = make_backbone(files, plugins=plugins or Plugins(), providers={}, device=device)
    return files.manifest, made, background_of(files)


def open_workspace(
    package: Package,
    files: BackboneFiles,
    listings: tuple[Listing, ...],
    *,
    plugins: Plugins,
    cache: Path | None,
    device: str,
    record: Composition | None = None,
    previous: Composed | None = None,
    progress: Progress | None = None,
    ahead: Ahead | None = None,
) -> Workspace:
    """Build the backbone and every expert that passes.

    Args:
        package: The backbone's package.
        files: Its bytes.
        listings: The experts as far as static checks go.
        plugins: Who makes the parts.
        cache: Where features are remembered.
        device: Where the trunk runs.
        record: The current generation's record.
        previous: The current generation, loaded.
        progress: Called with (texts encoded, texts to encode).
        ahead: Encodes the cards' texts before they are asked for.
    """
    providers: Providers = {}
    backbone = make_backbone(files, plugins=plugins, providers=providers, device=device)
    encode = cached(backbone, files.manifest.fingerprint, cache, progress)
    background, quiet = background_of(files), Quiet(backbone, encode=encode)
    candidates = gather(
        listings,
        previous=record,
        backbone=files.manifest,
        bus=backbone.bus_config(),
        plugins=plugins,
        providers=providers,
        verify=lambda a: check_live(a, backbone, background, read=quiet),
    )
    if ahead is not None and not any(plugins.providers("redhost_make_backbone")):
        rows = [r for a in candidates.attached.values() for r in a.card.rows]
        ahead.encode([r.text for r in rows], backbone=backbone, files=files, folder=cache)
    backbone = with_layout(backbone, candidates.attached)
    encode = cached(backbone, files.manifest.fingerprint, cache, progress)
    before = record.members() if record else {}
    bench = Bench(
        backbone=backbone,
        fingerprint=files.manifest.fingerprint,
        background=background,
        evaluation=evaluation_of(files),
        candidates=candidates,
        plugins=plugins,
        providers=providers,
        encode=encode,
        previous=previous,
        encode_previous=None
        if previous is None
        else cached(previous.backbone, previous.fingerprint, cache, progress),
        unchanged=frozenset(
            i for i, a in candidates.attached.items() if before.get(i) == a.files.digest
        ),
    )
    return Workspace(package=package, files=files, bench=bench)


def cached(
    backbone: Backbone, fingerprint: str, folder: Path | None, progress: Progress | None = None
) -> Encode:
    """Return texts → h through the feature cache."""
    cache = FeatureCache(folder, backbone=backbone, fingerprint=fingerprint)
    return partial(cache.encode, progress=progress)
