"""The product's path: packages are written, composed under the causal router, and evaluated.

An expert is then left out, added, and left out again; and all experts are declined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.generative.study.context import StudyContext, slices
from red_lab.generative.study.judge import CHECKED, bits_of
from red_lab.generative.study.packing import write_backbone, write_experts
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.core.training.router import RouterSettings

__all__ = ["through_packages"]

Answer = Callable[[redhost.Bus, Tensor], tuple[Tensor, Tensor]]

COLUMN = "backbone"
"""The column that leaves the base unchanged."""


def through_packages(
    context: StudyContext,
    experts: Mapping[str, redhost.Expert],
    *,
    seed: int,
    folder: Path,
) -> dict[str, Any]:
    """Write the experts of a seed as packages, compose them, and measure the result.

    Args:
        context: The texts.
        experts: The experts by domain.
        seed: Seed of the router.
        folder: The folder for the packages.
    """
    backbone = write_backbone(context, folder / "backbone")
    packages = write_experts(context, backbone, experts, seed=seed, folder=folder / f"seed{seed}")
    settings = RouterSettings(steps=context.setting.host_steps)
    options = RecomposeOptions(router="causal", seed=seed, settings=settings)
    compose_with = partial(_compose, backbone, packages, cache=context.features)
    last = context.domains[seed % len(context.domains)]
    before, (whole, seconds), (after, less) = (
        compose_with(last, options)[0],
        compose_with(None, options),
        compose_with(last, options),
    )
    evaluated = _judge(context, whole)
    others = [b for d, b in zip(context.domains, evaluated["bits"], strict=True) if d != last]
    return {
        **evaluated,
        "mixture": _judge(context, whole, answer=_mixture),
        "seconds": seconds,
        "router_seconds": whole.receipt.router.seconds,
        "changed": {
            **_change(context, last, before=before, whole=whole, after=after),
            "with": others,
            "attach_seconds": seconds,
            "remove_seconds": less,
        },
    }


def _compose(
    backbone: Path,
    packages: Mapping[str, Path],
    leave: str | None,
    options: RecomposeOptions,
    *,
    cache: Path,
) -> tuple[RecomposeResult, float]:
    """Compose all packages but one; return the result and the seconds."""
    start = perf_counter()
    chosen = [p for d, p in packages.items() if d != leave]
    made = compose(backbone, chosen, options=options, cache=cache)
    return made, perf_counter() - start


def _change(
    context: StudyContext,
    domain: str,
    *,
    before: RecomposeResult,
    whole: RecomposeResult,
    after: RecomposeResult,
) -> dict[str, Any]:
    """Return the effect on the other domains of adding a domain and removing it again."""
    metrics: dict[str, Any] = {
        when: _judge(context, outcome, leave=domain)["bits"]
        for when, outcome in (("before", before), ("after", after))
    }
    return {
        **metrics,
        "domain": domain,
        "digests_equal": _digests_equal([before, whole, after]),
        "router_restored": before.receipt.router.digest == after.receipt.router.digest,
    }


def _directly(bus: redhost.Bus, h: Tensor) -> tuple[Tensor, Tensor]:
    p, alpha = bus(h)
    return p, alpha


def _mixture(bus: redhost.Bus, h: Tensor) -> tuple[Tensor, Tensor]:
    """Answer as the router `causal-mixture` does, which has the same weights."""
    z = bus.norm(h)
    alpha = bus.weights(z)
    return bus.mixture(h, z, alpha), alpha


def _judge(
    context: StudyContext,
    outcome: RecomposeResult,
    *,
    leave: str | None = None,
    answer: Answer = _directly,
) -> dict[str, Any]:
    """Return bits per byte by domain of a bus's answers, and the mean weight of declining."""
    composed = outcome.composed
    cache = FeatureCache(
        context.features, backbone=composed.backbone, fingerprint=composed.fingerprint
    )
    bits, gap, equal = list[float](), 0.0, True
    declines, column = dict[str, float](), COLUMN in composed.bus.columns
    for domain in context.domains:
        if domain == leave:
            continue
        part, wide = context.part(domain, "test"), cache.encode(context.texts(domain, "test"))
        log_p, declined = list[Tensor](), list[Tensor]()
        with torch.inference_mode():
            for piece in slices(len(wide), cost=len(context.head)):
                p, weights = answer(composed.bus, wide[piece])
                gap = max(gap, float((p[:CHECKED].double().sum(1) - 1).abs().max()))
                log_p.append(p.gather(1, part.target[piece][:, None]).squeeze(1).log())
                declined.append(weights[:, -1])
        bits.append(bits_of(torch.cat(log_p), part.scale))
        if column:
            declines[domain] = float(torch.cat(declined).mean())
            equal = equal and _declined(context, composed, wide[:CHECKED])
    return {
        "bits": bits,
        "sum_gap": gap,
        "weights": declines,
        "declined_equal": equal,
    }


def _declined(context: StudyContext, composed: redhost.ComposedModel, wide: Tensor) -> bool:
    """Return whether logits are bitwise the base's with all weight on the backbone."""
    bus = composed.bus
    alpha = torch.zeros(len(wide), len(bus.columns))
    alpha[:, bus.columns.index(COLUMN)] = 1.0
    with torch.inference_mode():
        logits = bus.logits(wide, bus.norm(wide), alpha)
        return torch.equal(logits, wide[:, : context.backbone.width] @ context.head.T)


def _digests_equal(outcomes: Sequence[RecomposeResult]) -> bool:
    """Return whether every composition kept all experts and the backbone unchanged."""
    first = outcomes[0].receipt
    for receipt in (o.receipt for o in outcomes):
        changes = [receipt.backbone, *receipt.experts.values()]
        if any(c.before != c.after for c in changes) or receipt.backbone != first.backbone:
            return False
        if any(receipt.experts[i] != change for i, change in first.experts.items()):
            return False
    return True
