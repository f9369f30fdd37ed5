"""An author's shop: the backbone to train on, and the package that comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...registry.manifest import BackboneManifest, BackboneRef, ExpertManifest, Training
from ...registry.project import ExpertPlan, package_in
from ..backbones.backbone import Backbone
from ..composing.verify import measure_off_domain
from ..experts import Expert
from ..rows import BackgroundRow
from ..versions import library_versions
from .card_files import CardFile
from .expert_run import ExpertSettings, TrainedExpert
from .packaging import save_expert

__all__ = ["Read", "Shop", "write_package"]

Read = Callable[[Sequence[str]], Tensor]
"""Texts → what an expert reads, ``(N, D)``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shop:
    """What an author works with.

    Attributes:
        backbone: The frozen backbone.
        manifest: Its manifest.
        background: Its background card.
        encode: Texts → h, through the feature cache.
    """

    backbone: Backbone
    manifest: BackboneManifest
    background: tuple[BackgroundRow, ...]
    encode: Callable[[Sequence[str]], Tensor]

    def others(self, expert_id: str) -> list[str]:
        """Return the background texts that an expert is to leave alone: all but its own."""
        return [r.text for r in self.background if r.domain != expert_id]


def write_package(
    project: Path,
    plan: ExpertPlan,
    trained: TrainedExpert,
    *,
    shop: Shop,
    settings: ExpertSettings,
    part: Expert,
    read: Read,
    domain: str,
    card: CardFile,
    canary: Tensor,
    data: str,
    metrics: Mapping[str, float],
    vocabulary: str | None = None,
) -> ExpertManifest:
    """Write a trained expert into its project's package.

    Args:
        project: The project's folder.
        plan: What kind of expert it is.
        trained: The expert.
        shop: The backbone it was trained on.
        settings: How it was trained.
        part: The expert as the bus has it.
        read: Texts → what that part reads.
        domain: What it knows, where the plan does not say.
        card: Of rows it never trained on.
        canary: What it reads, to remember, ``(N, D)``.
        data: The digest of what it learnt from.
        metrics: What was measured.
        vocabulary: The digest of the tokenizer whose tokens it tells, where it is causal.
    """
    backbone = shop.backbone
    return save_expert(
        package_in(project),
        expert=trained.expert,
        expert_id=plan.id,
        backbone=BackboneRef(name=shop.manifest.id, fingerprint=shop.manifest.fingerprint),
        width=backbone.width,
        domain=plan.domain or domain,
        card=card,
        canary=canary,
        reads=plan.reads_tap,
        writes=plan.writes_tap,
        vocabulary=vocabulary,
        off_domain=measure_off_domain(part, plan.id, backbone, shop.background, read=read),
        training=Training(
            data=data,
            seed=settings.seed,
            epochs=trained.epoch,
            metrics=dict(metrics),
            versions=library_versions(),
        ),
        license=plan.license,
    )
