"""The experts of a seed as packages, written as any author's would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

import redhost
from red_lab.generative.study.bench import Bench

__all__ = ["write_backbone", "write_experts"]

BACKBONE_ID = "generative"
CANARIES = 8


def write_backbone(bench: Bench, project: Path) -> Path:
    """Write the backbone's package, its card some of the study's background."""
    if not project.exists():
        part = project.with_suffix(".part")
        redhost.new_backbone(
            part,
            BACKBONE_ID,
            bench.backbone.name,
            task=redhost.Generation(),
            background=[
                redhost.BackgroundRow(text=t)
                for t in bench.some(bench.background, most=bench.setting.card)
            ],
        )
        part.replace(project)
    return project


def write_experts(
    bench: Bench,
    backbone: Path,
    experts: Mapping[str, redhost.Expert],
    *,
    seed: int,
    folder: Path,
) -> dict[str, Path]:
    """Write the experts' packages that are not there yet; the backbone is opened once."""
    projects = {domain: folder / domain for domain in experts}
    missing = [d for d, project in projects.items() if not project.exists()]
    if missing:
        manifest, _, background = redhost.open_backbone(backbone)
        write = partial(
            _write_expert,
            bench,
            of=redhost.BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
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
    bench: Bench,
    domain: str,
    expert: redhost.Expert,
    *,
    of: redhost.BackboneRef,
    vocabulary: str | None,
    background: Sequence[redhost.BackgroundRow],
    seed: int,
    project: Path,
) -> None:
    """Write the package of an expert, its card from the passages that routers learn from."""
    module = redhost.write_project(
        project, kind="expert", package_id=domain, summary=f"tells the next token of {domain}"
    )
    redhost.save_expert(
        module,
        expert=expert,
        expert_id=domain,
        backbone=of,
        width=bench.backbone.width,
        domain=f"texts of {domain}",
        card=redhost.texts_card(_card(bench, domain)),
        canary=bench.norm(bench.part(domain, "train").h[:CANARIES]),
        vocabulary=vocabulary,
        off_domain=_loudness(bench, domain, expert, background),
        training=redhost.Training(
            data=bench.corpora.digest.removeprefix("sha256:"),
            seed=seed,
            epochs=bench.setting.epochs,
            versions=redhost.library_versions(),
        ),
    )


def _loudness(
    bench: Bench,
    domain: str,
    expert: redhost.Expert,
    background: Sequence[redhost.BackgroundRow],
) -> float | None:
    """Return ‖W_c Δ‖ on the background card."""

    def read(texts: Sequence[str]) -> Tensor:
        z: Tensor = bench.norm(bench.cache.encode(texts))
        return z

    return redhost.measure_off_domain(expert, domain, bench.backbone, background, read=read)


def _card(bench: Bench, domain: str) -> list[redhost.CardRow]:
    most = bench.setting.card
    return [
        redhost.CardRow(text=text, label="", part=part)
        for part, texts in (
            ("fit", bench.texts(domain, "fit")),
            ("gate", bench.texts(domain, "gate")),
        )
        for text in bench.some(texts, most=most)
    ]
