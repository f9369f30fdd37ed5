"""Routing health: each number sees the failure that a nearby number misses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms import (
    assignment_flip_rate,
    dead_experts,
    load_imbalance,
    pairwise_output_distance,
    usage,
    usage_entropy,
)
from torch import Tensor

E, N, D = 4, 8, 16


def one_hot(assignment: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(assignment, E).float()


SPREAD = one_hot(torch.arange(N).remainder(E))
COLLAPSED = one_hot(torch.zeros(N, dtype=torch.int64))


def mean_row_entropy(weights: Tensor) -> float:
    """Entropy in the wrong order: first of each row, then the mean."""
    return -torch.special.xlogy(weights, weights).sum(1).mean().item() / math.log(E)


def test_entropy_sees_collapse() -> None:
    assert mean_row_entropy(SPREAD) == mean_row_entropy(COLLAPSED)
    assert usage_entropy(SPREAD) == pytest.approx(1)
    assert usage_entropy(COLLAPSED) == 0
    assert usage_entropy(SPREAD[[0, 1]]) == pytest.approx(0.5)  # log 2 / log 4


def test_imbalance_and_dead_experts_see_collapse() -> None:
    assert load_imbalance(SPREAD) == 0
    assert load_imbalance(COLLAPSED) == pytest.approx(math.sqrt(E - 1))
    assert dead_experts(SPREAD) == ()
    assert dead_experts(COLLAPSED) == (1, 2, 3)
    assert dead_experts(SPREAD, floor=0.3) == (0, 1, 2, 3)


def distance_of_means(outputs: Tensor) -> float:
    """Means before distances: experts that differ on every row can look the same."""
    mean = outputs.mean(1)
    return (mean[0] - mean[1]).norm().item()


def test_distance_sees_experts_that_are_the_same(rows) -> None:
    x = rows(N, width=D)
    x = x - x.mean(0)
    opposite, copies = torch.stack([x, -x]), torch.stack([x, x])
    assert distance_of_means(opposite) == pytest.approx(distance_of_means(copies), abs=1e-5)
    assert pairwise_output_distance(opposite) == pytest.approx(2)
    assert pairwise_output_distance(copies) == 0
    orthogonal = torch.stack([torch.eye(D)[:1], torch.eye(D)[1:2]])
    assert pairwise_output_distance(orthogonal) == pytest.approx(math.sqrt(2))
    assert pairwise_output_distance(100 * orthogonal) == pytest.approx(math.sqrt(2))
    assert pairwise_output_distance(torch.zeros(3, N, D)) == 0


def change_of_usage(before: Tensor, after: Tensor) -> float:
    """Thrashing is invisible in the shares: rows change places, the shares stay."""
    return (usage(one_hot(before)) - usage(one_hot(after))).abs().sum().item()


def test_flip_rate_sees_thrashing() -> None:
    before = torch.arange(N).remainder(E)
    after = before.roll(1)
    assert change_of_usage(before, after) == 0
    assert assignment_flip_rate(before, after) == 1
    assert assignment_flip_rate(before, before) == 0


def test_flip_rate_of_several_experts_ignores_their_order() -> None:
    before = torch.tensor([[0, 1], [2, 3]])
    assert assignment_flip_rate(before, torch.tensor([[1, 0], [3, 2]])) == 0
    assert assignment_flip_rate(before, torch.tensor([[1, 2], [2, 3]])) == 0.25


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 100))
def test_ranges_and_permutations(rows, experts: int, n: int, seed: int) -> None:
    weights = rows(n, width=experts, seed=seed).softmax(-1)
    options = torch.randperm(experts, generator=torch.Generator().manual_seed(seed))
    assert 0 <= usage_entropy(weights) <= 1
    assert 0 <= load_imbalance(weights) <= math.sqrt(experts) + 1e-6
    assert usage(weights).sum().item() == pytest.approx(1)
    for number in (usage_entropy, load_imbalance):
        assert number(weights[:, options]) == pytest.approx(number(weights), abs=1e-9)
    assert len(dead_experts(weights[:, options])) == len(dead_experts(weights))


def test_one_expert_is_not_collapsed() -> None:
    assert usage_entropy(torch.ones(3, 1)) == 1
    assert load_imbalance(torch.ones(3, 1)) == 0


def test_of_nothing_there_is_no_figure() -> None:
    none = torch.zeros(0, E)
    assert math.isnan(usage_entropy(none))
    assert math.isnan(usage_entropy(none[:, :1]))
    assert math.isnan(load_imbalance(none))
    assert dead_experts(none) == ()
    assert math.isnan(pairwise_output_distance(torch.zeros(2, 0, D)))
    assert math.isnan(pairwise_output_distance(torch.zeros(1, N, D)))
    assert math.isnan(assignment_flip_rate(torch.zeros(0), torch.zeros(0)))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"weights \(N, E\), found shape \(4,\)"):
        usage(torch.ones(4))
    with pytest.raises(ValueError, match=r"outputs are \(E, N, D\), found shape \(4, 2\)"):
        pairwise_output_distance(torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"shape \(4,\) .* found shape \(5,\)"):
        assignment_flip_rate(torch.ones(4), torch.ones(5))
