"""Seeded layers: the same seed gives the same bits, and nothing global moves."""

from __future__ import annotations

import math

import torch
from redhost_mechanisms.linear import seeded_linear, zero_linear
from torch import nn


def test_same_seed_same_bits() -> None:
    one, two = (seeded_linear(8, 5, generator=torch.Generator().manual_seed(3)) for _ in "ab")
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(one.bias, two.bias)


def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    seeded_linear(8, 5, generator=torch.Generator())
    zero_linear(8, 5)
    assert torch.equal(torch.get_rng_state(), before)
    nn.Linear(8, 5)  # What both avoid.
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_distribution_is_pytorchs() -> None:
    weight = seeded_linear(16, 4000, generator=torch.Generator().manual_seed(0)).weight
    assert weight.abs().max() <= 1 / math.sqrt(16)
    assert abs(weight.std().item() - 1 / math.sqrt(3 * 16)) < 1e-3


def test_zero_linear_gives_zero_and_learns() -> None:
    layer = zero_linear(8, 5)
    y = layer(torch.ones(2, 8))
    y.sum().backward()
    assert not y.any()
    assert layer.weight.grad.all()
