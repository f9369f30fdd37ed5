"""A bus that answers a number: means under α, beside the backbone's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import Linear, LowRank
from redhost.core.routers.base import as_router

B, D, R = 4, 8, 2


@pytest.fixture
def h() -> Tensor:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(5))


def residual(seed: int) -> LowRank:
    g = torch.Generator().manual_seed(seed)
    return LowRank(
        U=torch.randn(R, D, generator=g),
        V=torch.randn(D, R, generator=g),
        activation="gelu",
        space="hidden",
        labels=("value",),
    )


def number(weight: float, bias: float) -> Linear:
    """An expert that answers weight · Σ z + bias: under the bus norm, whose Σ z is 0, the bias."""
    return Linear(
        W=torch.full((1, D), weight), b=torch.tensor([bias]), space="labels", labels=("value",)
    )


def numbers(*, classifier: Tensor | None, backbone_column: bool = False) -> redhost.Bus:
    experts: dict[str, redhost.Expert] = {"a": number(1.0, 10.0), "b": number(1.0, 30.0)}
    if classifier is not None:
        experts["c"] = residual(3)
    return redhost.Bus(
        Readout(
            classifier=classifier,
            labels=("value",) if classifier is not None else (),
            task=redhost.plugins.make_task("regression"),
        ),
        norm=LayerNorm(width=D, eps=1e-5),
        router=as_router(nn.Identity()),
        experts=experts,
        backbone_column=backbone_column,
    )


def test_a_mixture_of_numbers_is_their_mean(h: Tensor) -> None:
    bus = numbers(classifier=None)
    assert bus.labels == ("value",) and bus.answers == 1
    alpha = torch.tensor([[0.25, 0.75]]).expand(B, -1)
    answer = bus.probabilities(h, bus.norm(h), alpha)
    torch.testing.assert_close(answer, torch.full((B, 1), 0.25 * 10 + 0.75 * 30))


def test_a_backbone_without_a_number_leaves_the_mean_to_those_with_one(h: Tensor) -> None:
    bus = numbers(classifier=None, backbone_column=True)
    alpha = torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    answer = bus.probabilities(h[:2], bus.norm(h[:2]), alpha)
    torch.testing.assert_close(answer, torch.tensor([[0.4 * 10 + 0.6 * 30], [0.0]]))


def test_numbers_of_their_own_stand_beside_the_backbones(h: Tensor) -> None:
    """ŷ = α_H ŷ_H + Σ_i α_i y_i; within ŷ_H the weights are renormalised."""
    w = torch.randn(1, D, generator=torch.Generator().manual_seed(4))
    bus = numbers(classifier=w, backbone_column=True)
    z, alpha = bus.norm(h), torch.tensor([[0.1, 0.2, 0.3, 0.4]]).expand(B, -1)
    shared = (h + 0.3 / 0.7 * bus.parts()[2](z)) @ w.T
    expected = 0.7 * shared + 0.1 * 10 + 0.2 * 30
    torch.testing.assert_close(bus.probabilities(h, z, alpha), expected)
    alone = bus.alone(h, z, 1)
    torch.testing.assert_close(alone, torch.full((B, 1), 30.0))
