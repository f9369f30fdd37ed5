"""Evaluate router kinds under all mixtures of domains: robustness to a shift of traffic.

Traffic is a distribution λ over the experts' domains. Under it the accuracy of a router is
Σ_k λ_k acc_k, and its regret Σ_k λ_k (ℓ_k − ref_k), where ℓ_k is the mean −log p(y|x) on rows of
domain k and ref_k that of the domain's own expert. Both are linear in λ, so the worst case over the
simplex is a corner: one domain alone (seed 002; the router `robust` trains for it).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from redhost.core.evaluation.with_router import with_router
from redhost.core.model.build import ROUTERS
from redhost.core.model.composed import ComposedModel
from redhost.core.plugins.manager import Plugins
from redhost.core.routers import KINDS
from redhost.core.types import Encode, Row
from redhost.registry.errors import UsageError

SAMPLES = 1000
"""Number of mixtures drawn uniformly from the simplex."""

TINY = 1e-12


class MixturePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a router under one mixture.

    Attributes:
        accuracy: 0–1.
        regret: Its loss minus that of each domain's own expert, nats.
    """

    accuracy: float
    regret: float


class RouterMixtures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one router kind over the simplex.

    Attributes:
        corners: By domain, the result for that domain alone.
        uniform: The result for all domains at equal weight.
        worst: The largest regret over the whole simplex, and the smallest accuracy.
        worst_domain: The domain of the corner with the largest regret.
        regrets: 5 %, 50 % and 95 % quantile over `SAMPLES` mixtures drawn uniformly.
        accuracies: The same quantiles of the accuracy.
    """

    corners: dict[str, MixturePoint]
    uniform: MixturePoint
    worst: MixturePoint
    worst_domain: str
    regrets: tuple[float, float, float]
    accuracies: tuple[float, float, float]


class MixtureSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The results of router kinds over the simplex of traffic.

    Attributes:
        reference: ref_k by domain, nats.
        counts: Number of rows by domain.
        routers: Results by kind; the composition's own comes first.
        generation: The generation that was evaluated.
    """

    reference: dict[str, float]
    counts: dict[str, int]
    routers: dict[str, RouterMixtures]
    generation: int | None


def sweep_mixtures(
    composed: ComposedModel,
    rows: Sequence[Row],
    *,
    encode: Encode,
    plugins: Plugins,
    kinds: Sequence[str] | None = None,
) -> MixtureSweep:
    """Train a router of every kind on the composition's cards, and judge each by domain.

    Args:
        composed: The composition; its own router is judged without retraining.
        rows: Labelled texts; those outside every expert's domain are left out.
        encode: Texts → h, usually through the feature cache.
        plugins: The plugins that may make routers.
        kinds: Kinds in addition to the composition's own; by default every built-in one,
            and those of redhost-robust where it is installed.

    Raises:
        UsageError: If the composition answers numbers, or fewer than two domains have rows.
    """
    domains = [i for i in composed.bus.ids if any(r.domain == i for r in rows)]
    _check(composed, domains)
    by_domain = [[r for r in rows if r.domain == d] for d in domains]
    features = [encode([r.text for r in own]) for own in by_domain]
    wanted = _usual_kinds(plugins) if kinds is None else kinds
    reference = [
        _loss(composed, _alone(composed, h, d), own)
        for d, h, own in zip(domains, features, by_domain, strict=True)
    ]
    routers = {}
    for kind in dict.fromkeys([composed.router_kind, *wanted]):
        routed, ids = composed, composed.bus.ids
        if kind != composed.router_kind:
            routed = with_router(composed, kind=kind, ids=ids, encode=encode, plugins=plugins)
        routers[kind] = _judge(routed, domains, features, by_domain, reference)
    return MixtureSweep(
        reference=dict(zip(domains, reference, strict=True)),
        counts={d: len(own) for d, own in zip(domains, by_domain, strict=True)},
        routers=routers,
        generation=composed.generation,
    )


def _usual_kinds(plugins: Plugins) -> list[str]:
    """Return the kinds of redhost and redhost-robust: other plugins' may not be for whole texts."""
    built_in = {kind.kind for kind in KINDS}
    return [
        kind
        for kind in plugins.names(ROUTERS)
        if kind in built_in or "redhost-robust" in plugins.providers(ROUTERS, kind)
    ]


def _check(composed: ComposedModel, domains: Sequence[str]) -> None:
    if not composed.bus.task.one_label:
        found = composed.bus.task.head.noun
        raise UsageError("mixtures are judged by the loss of labels", found=found)
    if len(domains) < 2:  # noqa: PLR2004  (there is nothing to mix)
        raise UsageError(
            "mixtures of traffic need rows of several domains",
            expected="labelled rows of two experts at least",
            found=", ".join(domains) or "none",
            hint="Give some with --data FILE.",
        )


def _judge(
    composed: ComposedModel,
    domains: Sequence[str],
    features: Sequence[Tensor],
    rows: Sequence[Sequence[Row]],
    reference: Sequence[float],
) -> RouterMixtures:
    accuracies, regrets = [], []
    for h, own, ref in zip(features, rows, reference, strict=True):
        with torch.inference_mode():
            p = composed.bus(h)[0]
        right = composed.bus.task.head.right(p, own, composed.bus.labels)
        accuracies.append(float(right.mean()))
        regrets.append(_loss(composed, p, own) - ref)
    worst = max(range(len(domains)), key=lambda k: regrets[k])
    return RouterMixtures(
        corners={
            d: MixturePoint(accuracy=a, regret=r)
            for d, a, r in zip(domains, accuracies, regrets, strict=True)
        },
        uniform=MixturePoint(
            accuracy=sum(accuracies) / len(domains), regret=sum(regrets) / len(domains)
        ),
        worst=MixturePoint(accuracy=min(accuracies), regret=regrets[worst]),
        worst_domain=domains[worst],
        regrets=_quantiles(regrets),
        accuracies=_quantiles(accuracies),
    )


def _alone(composed: ComposedModel, h: Tensor, domain: str) -> Tensor:
    bus = composed.bus
    with torch.inference_mode():
        return bus.alone(h, bus.norm(h), bus.columns.index(domain))


def _loss(composed: ComposedModel, p: Tensor, rows: Sequence[Row]) -> float:
    """Return the mean −log p(y|x); a label that the composition lacks has probability 0."""
    place = {label: n for n, label in enumerate(composed.bus.labels)}
    answers = torch.tensor([place.get(r.label, -1) for r in rows])
    own = p.gather(1, answers.clamp_min(0)[:, None]).squeeze(1)
    return -float(torch.where(answers >= 0, own, 0.0).clamp_min(TINY).log().mean())


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 5 %, 50 % and 95 % quantile of λ·values, λ uniform over the simplex."""
    generator = torch.Generator().manual_seed(0)
    drawn = -torch.rand(SAMPLES, len(values), generator=generator, dtype=torch.float64).log()
    mixed = (drawn / drawn.sum(-1, keepdim=True)) @ torch.tensor(values, dtype=torch.float64)
    low, middle, high = torch.quantile(
        mixed, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    ).tolist()
    return low, middle, high
