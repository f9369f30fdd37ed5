"""The experts of a seed as packages, written with the public authoring API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

import redhost
from red_lab.generative.study.context import StudyContext
from redhost.core.composition.prepare import open_backbone
from redhost.core.digests import library_versions
from redhost.core.model.verify import measure_off_domain
from redhost.core.training.new_backbone import BackbonePlan, new_backbone
from redhost.core.training.packaging import ExpertDraft, save_expert, texts_card
from redhost.core.types import BackgroundRow, CardRow
from redhost.registry.package.manifest import BackboneRef, Training

__all__ = ["write_backbone", "write_experts"]

BACKBONE_ID = "generative"
CANARIES = 8


def write_backbone(context: StudyContext, project: Path) -> Path:
    """Write the backbone's package; its card is a part of the study's background."""
    if not project.exists():
        part = project.with_suffix(".part")
        new_backbone(
            part,
            BackbonePlan(
                id=BACKBONE_ID,
                source=context.backbone.name,
                task=redhost.plugins.Plugins().task("generation"),
            ),
            background=[
                BackgroundRow(text=t)
                for t in context.some(context.background, most=context.setting.card)
            ],
        )
        part.replace(project)
    return project


def write_experts(
    context: StudyContext,
    backbone: Path,
    experts: Mapping[str, redhost.Expert],
    *,
    seed: int,
    folder: Path,
) -> dict[str, Path]:
    """Write the experts' missing packages; the backbone is opened once."""
    projects = {domain: folder / domain for domain in experts}
    missing = [d for d, project in projects.items() if not project.exists()]
    if missing:
        manifest, _, background = open_backbone(backbone)
        write = partial(
            _write_expert,
            context,
            of=BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
            vocabulary=manifest.tokenizer,
            background=background,
            seed=seed,
        )
        for domain in missing:
            part = projects[domain].with_suffix(".part")
            write(domain, experts[domain], project=part)
            part.replace(projects[domain])
    return projects


def _write_expert(
    context: StudyContext,
    domain: str,
    expert: redhost.Expert,
    *,
    of: BackboneRef,
    vocabulary: str | None,
    background: Sequence[BackgroundRow],
    seed: int,
    project: Path,
) -> None:
    """Write an expert's package; its card holds the passages that routers are trained on."""
    module = redhost.authoring.write_project(
        project, kind="expert", package_id=domain, summary=f"tells the next token of {domain}"
    )
    draft = ExpertDraft(
        expert=expert,
        id=domain,
        backbone=of,
        domain=f"texts of {domain}",
        card=texts_card(_card(context, domain)),
        canary=context.norm(context.part(domain, "train").h[:CANARIES]),
        vocabulary=vocabulary,
        off_domain=_off_domain_norm(context, domain, expert, background),
        training=Training(
            data=context.corpora.digest.removeprefix("sha256:"),
            seed=seed,
            epochs=context.setting.epochs,
            versions=library_versions(),
        ),
    )
    save_expert(module, draft)


def _off_domain_norm(
    context: StudyContext,
    domain: str,
    expert: redhost.Expert,
    background: Sequence[BackgroundRow],
) -> float | None:
    """Return ‖W_c Δ‖ on the background card."""

    def read(texts: Sequence[str]) -> Tensor:
        z: Tensor = context.norm(context.cache.encode(texts))
        return z

    return measure_off_domain(expert, domain, context.backbone, background, read=read)


def _card(context: StudyContext, domain: str) -> list[CardRow]:
    most = context.setting.card
    return [
        CardRow(text=text, label="", part=part)
        for part, texts in (
            ("fit", context.texts(domain, "fit")),
            ("gate", context.texts(domain, "gate")),
        )
        for text in context.some(texts, most=most)
    ]
