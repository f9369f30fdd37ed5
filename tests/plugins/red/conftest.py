"""A tiny trunk, few questions, and features out of thin air."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from red_lab.red import queries
from red_lab.red.base import FrozenBase
from red_lab.red.experts import NAMES
from red_lab.red.queries import LABELS, Query
from torch import Tensor, nn

import redhost
from redhost.testing import tiny_backbone


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_backbone(tmp_path_factory.mktemp("model"))


@pytest.fixture
def backbone(model):
    return redhost.Backbone.load(f"hf:{model}", pooling="mean")


@pytest.fixture
def few(monkeypatch):
    """Hundreds of questions in place of thousands."""
    monkeypatch.setattr(queries, "SIZES", (300, 60, 60))


def rows(count: int) -> list[Query]:
    return [Query(f"q {n}", LABELS[n % 99], NAMES[n % 5], f"c {n}") for n in range(count)]


def made_up(count: int, width: int) -> FrozenBase:
    """Features of `rows(count)` out of thin air, with a classifier that knows nothing."""
    generator = torch.Generator().manual_seed(0)
    return FrozenBase(
        h=torch.randn(count, width, generator=generator),
        classifier=0.2 * torch.randn(99, width, generator=generator),
        place={f"q {n}": n for n in range(count)},
    )


def descend(
    parameters: Iterable[nn.Parameter],
    loss: Callable[[Tensor], Tensor],
    count: int,
    *,
    epochs: int,
    batch: int,
    learning_rate: float,
    weight_decay: float,
    generator: torch.Generator,
) -> None:
    """AdamW down a cosine to nothing, over shuffled batches: what trains every part of a page."""
    optimizer = torch.optim.AdamW(parameters, weight_decay=weight_decay)
    steps, step = epochs * math.ceil(count / batch), 0
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator)
        for index in order.split(batch):
            share = (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.param_groups[0]["lr"] = learning_rate * share
            optimizer.zero_grad()
            loss(index).backward()
            optimizer.step()
            step += 1


def alike(one: nn.Module, other: nn.Module) -> bool:
    """Say whether two modules have the same weights, but for rounding."""
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )
