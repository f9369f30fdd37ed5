"""The product's path: packages are written, composed under the causal router, and evaluated.

The experts of a seed become packages through the public authoring API. One of them is then left
out, added, and left out again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import redhost_author
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.training.context import open_backbone
from redhost_author.training.packaging import ExpertDraft, save_expert, texts_card
from redhost_author.versions import library_versions
from torch import Tensor

import redhost
from red_lab.generative.context import StudyContext, slices
from red_lab.generative.corpora import Part
from red_lab.generative.judge import bits_of
from red_lab.metrics import whole
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.core.model.verify import measure_off_domain
from redhost.core.training.router import RouterSettings
from redhost.core.types import BackgroundRow, CardRow
from redhost.registry.package.manifest import BackboneRef, Training

__all__ = ["through_packages"]

CANARIES = 8
CARD_PARTS: tuple[Part, ...] = ("fit", "gate")


def through_packages(
    context: StudyContext, experts: Mapping[str, redhost.Expert], *, seed: int, folder: Path
) -> dict[str, Any]:
    """Write the experts of a seed as packages, compose them, and measure the result.

    Args:
        context: The texts.
        experts: The experts by domain.
        seed: Seed of the router.
        folder: The folder for the packages.
    """
    backbone = _write_backbone(context, folder / "backbone")
    packages = _write_experts(context, backbone, experts, folder=folder / f"seed{seed}", seed=seed)
    settings = RouterSettings(steps=context.setting.host_steps)
    options = RecomposeOptions(router="causal", seed=seed, settings=settings)
    last = context.domains[seed % len(context.domains)]

    def composed(*, leave: str | None) -> tuple[RecomposeResult, float]:
        start = perf_counter()
        chosen = [package for domain, package in packages.items() if domain != leave]
        result = compose(backbone, chosen, options=options, cache=context.features)
        return result, perf_counter() - start

    before, _ = composed(leave=last)
    whole, seconds = composed(leave=None)
    after, less = composed(leave=last)
    evaluated, routers = _judge(context, whole), [r.receipt.router for r in (before, after)]
    return {
        **evaluated,
        "mixture": _judge(context, whole, mixture=True),
        "seconds": seconds,
        "router_seconds": whole.receipt.router.seconds,
        "changed": {
            "domain": last,
            "before": _judge(context, before, leave=last)["bits"],
            "with": [
                b for d, b in zip(context.domains, evaluated["bits"], strict=True) if d != last
            ],
            "after": _judge(context, after, leave=last)["bits"],
            "router_restored": routers[0].digest == routers[1].digest,
            "remove_seconds": less,
        },
    }


def _write_backbone(context: StudyContext, project: Path) -> Path:
    """Write the backbone's package; its card is a part of the study's background."""
    texts = context.fitting(context.background, most=context.setting.card)
    plan = BackbonePlan(
        id="generative",
        source=context.backbone.name,
        task=redhost.plugins.Plugins().task("generation"),
    )
    if not project.exists():
        with whole(project) as part:
            new_backbone(part, plan, background=[BackgroundRow(text=t) for t in texts])
    return project


def _write_experts(
    context: StudyContext,
    backbone: Path,
    experts: Mapping[str, redhost.Expert],
    *,
    folder: Path,
    seed: int,
) -> dict[str, Path]:
    """Write the experts' missing packages; a card holds the passages that routers train on."""
    manifest, _, background = open_backbone(backbone)
    projects = {domain: folder / domain for domain in experts}
    for domain, project in projects.items():
        if project.exists():
            continue
        part, expert = project.with_suffix(".part"), experts[domain]
        module = redhost_author.write_project(
            part, kind="expert", package_id=domain, summary=f"tells the next token of {domain}"
        )
        draft = ExpertDraft(
            expert=expert,
            id=domain,
            backbone=BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
            domain=f"texts of {domain}",
            card=texts_card(_card(context, domain)),
            canary=context.norm(context.part(domain, "train").h[:CANARIES]),
            vocabulary=manifest.tokenizer,
            off_domain=_off_domain_norm(context, domain, expert, background),
            training=Training(
                data=context.corpora.digest.removeprefix("sha256:"),
                seed=seed,
                epochs=context.setting.epochs,
                versions=library_versions(),
            ),
        )
        save_expert(module, draft)
        part.replace(project)
    return projects


def _card(context: StudyContext, domain: str) -> list[CardRow]:
    return [
        CardRow(text=text, label="", part=part)
        for part in CARD_PARTS
        for text in context.fitting(context.texts(domain, part), most=context.setting.card)
    ]


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


def _judge(
    context: StudyContext,
    outcome: RecomposeResult,
    *,
    leave: str | None = None,
    mixture: bool = False,
) -> dict[str, Any]:
    """Return bits per byte by domain of a bus's answers, and the mean weight of declining.

    With `mixture` it answers as the router `causal-mixture` does, which has the same weights.
    """
    model = outcome.composed
    bus, fingerprint = model.bus, model.fingerprint
    cache = FeatureCache(context.features, backbone=model.backbone, fingerprint=fingerprint)
    bits, declined = list[float](), dict[str, float]()
    for domain in context.domains:
        if domain == leave:
            continue
        part, wide = context.part(domain, "test"), cache.encode(context.texts(domain, "test"))
        log_p, weights = list[Tensor](), list[Tensor]()
        with torch.inference_mode():
            for piece in slices(len(wide), cost=len(context.head)):
                p, alpha = bus(wide[piece])
                if mixture:
                    p = bus.mixture(wide[piece], bus.norm(wide[piece]), alpha)
                log_p.append(p.gather(1, part.target[piece][:, None]).squeeze(1).log())
                weights.append(alpha[:, -1])
        bits.append(bits_of(torch.cat(log_p), part.scale))
        declined[domain] = float(torch.cat(weights).mean())
    return {"bits": bits, "weights": declined}
