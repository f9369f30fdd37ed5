"""Experiment C on redhost's own bus: five experts and a frozen linear classifier.

    h = (x₁, −x₁, x₂, −x₂, 1, −1),  z = LayerNorm(h),  ŷ = W_c h + Σ_i α_i Δ_i(z)

In the seed's pseudo-code the experts take the base's prediction, a single number, as input. The
LayerNorm of one number is 0 and carries no information, so on the bus they take features. Mirrored
features keep the mean at 0, and the constant preserves x through the norm: z is h times one
positive number.
"""

from __future__ import annotations

from collections.abc import Mapping

import redhost_author
import torch
from redhost_author.training.expert import ExpertRows, train_expert
from torch import Tensor

import redhost
from red_lab.toy.data import PLACES, UNITS, Systems, grid, oracle
from red_lab.toy.residual import BASES
from red_lab.training import built_in_router
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import LowRank
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.router import RouterSettings, train_router

__all__ = ["classifier", "features", "learn_router", "measure", "norm_of_a_scalar", "route"]

WIDTH = 6
IDS = tuple(f"segment{n}" for n in range(1, len(PLACES)))
VALUE = ("value",)
TASK = redhost.plugins.make_task("regression", resolution=1 / UNITS)
NORM = LayerNorm(width=WIDTH, eps=1e-5)


def features() -> Tensor:
    """Return h of every point, ``(N, 6)``."""
    x = torch.cat([grid().inputs, torch.ones(len(grid().y), 1)], dim=1)
    return torch.stack([x, -x], dim=2).flatten(1)


def classifier(name: str) -> Tensor:
    """Return W_c ``(1, 6)`` of a base: half of each weight on each mirrored feature."""
    half = torch.tensor(BASES[name], dtype=torch.float32) / 2
    return torch.stack([half, -half], dim=1).reshape(1, WIDTH)


def norm_of_a_scalar() -> float:
    """Return the largest |LayerNorm(ŷ)| over the grid, with ŷ as the only feature."""
    norm = LayerNorm(width=1, eps=1e-5)
    scalar: Tensor = norm(grid().y.float()[:, None])
    return float(scalar.abs().max())


def learn_router(seed: int, *, steps: int = 600) -> redhost.Router:
    """Train the host's two-layer router on the segments' labels."""
    z = NORM(features())
    config = redhost.BusConfig(width=WIDTH, labels=VALUE, task=TASK)
    router = built_in_router("mlp", config, IDS, seed)
    data = [
        redhost.plugins.ColumnData(
            column=name,
            z=z[points],
            statistics=Statistics.of_rows(z[points], [name] * len(points)),
        )
        for name, points in zip(IDS, grid().home, strict=True)
    ]
    settings = RouterSettings(steps=steps, learning_rate=0.02, weight_decay=0.0)
    train_router(router, data, columns=IDS, settings=settings)
    return router


def route(router: redhost.Router) -> Tensor:
    """Return α of every point, ``(N, E)``."""
    with torch.inference_mode():
        return torch.softmax(router(NORM(features())), dim=-1)


def measure(seed: int, name: str, *, router: redhost.Router, epochs: int) -> Systems:
    """Train five `mlp` experts on a base, and evaluate every way to combine them.

    Args:
        seed: Of the experts.
        name: The base.
        router: z → logits over the experts.
        epochs: Passes over a segment's rows.
    """
    experts = {
        expert_id: _train(10 * seed + i, name, segment=i, epochs=epochs)
        for i, expert_id in enumerate(IDS)
    }
    with torch.inference_mode():
        return _use(_bus(name, experts, router), _bus(name, {IDS[0]: _average(experts)}, router))


def _use(bus: redhost.Bus, averaged: redhost.Bus) -> Systems:
    h = features()
    z = bus.norm(h)
    weights = torch.ones(len(h), len(bus.columns))
    none = torch.zeros_like(weights)
    found = {
        "oracle": oracle(bus.each(h, z)[..., 0].T),
        "learned": bus(h)[0][:, 0],
        "uniform": bus.probabilities(h, z, weights / len(bus.columns))[:, 0],
        "parameters": averaged.alone(h, z, 0)[:, 0],
        "alone": bus.probabilities(h, z, none)[:, 0],
        "sum": bus.probabilities(h, z, weights)[:, 0],
    }
    return {name: answers.double() for name, answers in found.items()}


def _bus(name: str, experts: Mapping[str, redhost.Expert], router: redhost.Router) -> redhost.Bus:
    return redhost.Bus(
        Readout(classifier=classifier(name), labels=VALUE, task=TASK),
        norm=NORM,
        router=router,
        experts=experts,
    )


def _train(seed: int, name: str, *, segment: int, epochs: int) -> redhost.Expert:
    """Train one expert alone, in the host's `mlp` form: V gelu(U z + u) + v, 64 units wide."""
    points = grid().home[segment]
    h = features()[points]
    settings = redhost_author.ExpertSettings(
        form="mlp",
        space="logits",
        rank=64,
        epochs=epochs,
        batch=100,
        learning_rate=0.01,
        weight_decay=0.0,
        dropout=0.0,
        off_domain=0.0,
        patience=epochs,
        seed=seed,
    )
    return train_expert(
        ExpertRows(h=h, z=NORM(h), answers=[repr(y) for y in grid().y[points].tolist()]),
        Readout(classifier=classifier(name), labels=VALUE, task=TASK),
        labels=(),
        settings=settings,
    ).expert


def _average(experts: Mapping[str, redhost.Expert]) -> LowRank:
    """Return the expert whose parameters are the means of all experts' parameters."""
    states = [e.state_dict() for e in experts.values()]
    U, V, u, v = (torch.stack([s[key] for s in states]).mean(0) for key in ("U", "V", "u", "v"))
    return LowRank(U=U, V=V, u=u, v=v, activation="gelu", space="logits")
