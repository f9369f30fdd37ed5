"""A tiny trunk, few questions, and features out of thin air."""

from __future__ import annotations

import pytest
import torch
from red_lab.red import queries
from red_lab.red.base import FrozenBase
from red_lab.red.experts import NAMES
from red_lab.red.queries import LABELS, Query

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
