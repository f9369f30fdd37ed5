"""The experts of a seed as packages, written with the public authoring API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

import redhost
from red_lab.generative.study.context import StudyContext

__all__ = ["write_backbone", "write_experts"]

BACKBONE_ID = "generative"
CANARIES = 8


def write_backbone(context: StudyContext, project: Path) -> Path:
    """Write the backbone's package; its card is a part of the study's background."""
    if not project.exists():
        part = project.with_suffix(".part")
        redhost.authoring.new_backbone(
            part,
            redhost.authoring.BackbonePlan(
                id=BACKBONE_ID,
                source=context.backbone.name,
                task=redhost.plugins.Plugins().task("generation"),
            ),
            background=[
                redhost.authoring.BackgroundRow(text=t)
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
        manifest, _, background = redhost.authoring.open_backbone(backbone)
        write = partial(
            _write_expert,
            context,
            of=redhost.authoring.BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
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
    of: redhost.authoring.BackboneRef,
    vocabulary: str | None,
    background: Sequence[redhost.authoring.BackgroundRow],
    seed: int,
    project: Path,
) -> None:
    """Write an expert's package; its card holds the passages that routers are trained on."""
    module = redhost.authoring.write_project(
        project, kind="expert", package_id=domain, summary=f"tells the next token of {domain}"
    )
    draft = redhost.authoring.ExpertDraft(
        expert=expert,
        id=domain,
        backbone=of,
        domain=f"texts of {domain}",
        card=redhost.authoring.texts_card(_card(context, domain)),
        canary=context.norm(context.part(domain, "train").h[:CANARIES]),
        vocabulary=vocabulary,
        off_domain=_off_domain_norm(context, domain, expert, background),
        training=redhost.authoring.Training(
            data=context.corpora.digest.removeprefix("sha256:"),
            seed=seed,
            epochs=context.setting.epochs,
            versions=redhost.authoring.library_versions(),
        ),
    )
    redhost.authoring.save_expert(module, draft)


def _off_domain_norm(
    context: StudyContext,
    domain: str,
    expert: redhost.Expert,
    background: Sequence[redhost.authoring.BackgroundRow],
) -> float | None:
    """Return ‖W_c Δ‖ on the background card."""

    def read(texts: Sequence[str]) -> Tensor:
        z: Tensor = context.norm(context.cache.encode(texts))
        return z

    return redhost.authoring.measure_off_domain(
        expert, domain, context.backbone, background, read=read
    )


def _card(context: StudyContext, domain: str) -> list[redhost.authoring.CardRow]:
    most = context.setting.card
    return [
        redhost.authoring.CardRow(text=text, label="", part=part)
        for part, texts in (
            ("fit", context.texts(domain, "fit")),
            ("gate", context.texts(domain, "gate")),
        )
        for text in context.some(texts, most=most)
    ]
