"""Nested ranks: the first r units of an expert, cut out of it or trained inside it."""

from __future__ import annotations

import pytest
import torch

import redhost
from redhost.core.bus.experts import ClassifierExpert, Expert, Linear, LowRank
from redhost.core.bus.nested import at_each_rank, first_units

Z = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture(params=["residual", "mlp", "labels"])
def expert(request) -> Expert:
    U, V = drawn(4, 6), drawn(6, 4)
    if request.param == "labels":
        return ClassifierExpert(
            U=U, V=V, W=drawn(2, 6), b=drawn(2), activation="gelu", labels=("x", "y")
        )
    biases = {"u": drawn(4), "v": drawn(6)} if request.param == "mlp" else {}
    return LowRank(U=U, V=V, **biases, activation="tanh", space="hidden", labels=("x",))


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_the_first_units_compute_what_is_left_when_the_others_are_silent(expert, rank) -> None:
    cut = first_units(expert, rank)
    silent = first_units(expert, 4)
    silent.state_dict()["V"][:, rank:] = 0
    torch.testing.assert_close(cut(Z), silent(Z))
    assert cut.labels == expert.labels and cut.space == expert.space


def test_they_take_their_own_memory_and_no_more(expert) -> None:
    cut = first_units(expert, 1)
    assert cut.U.shape == (1, 6) and cut.V.shape == (6, 1)
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in cut.parameters())
    before = expert(Z).clone()
    with torch.no_grad():
        cut.state_dict()["U"].zero_()
    assert torch.equal(expert(Z), before)


def test_gradients_at_a_smaller_rank_reach_its_units_alone(expert) -> None:
    small, whole = at_each_rank(expert, (2, 4))
    assert whole is expert
    torch.testing.assert_close(small(Z), first_units(expert, 2)(Z))
    small(Z).square().sum().backward()
    assert bool((expert.U.grad[:2] != 0).all()) and not bool(expert.U.grad[2:].any())
    assert not bool(expert.V.grad[:, 2:].any())


def test_a_linear_head_has_no_units() -> None:
    linear = Linear(W=drawn(2, 6), b=drawn(2), space="labels", labels=("x", "y"))
    with pytest.raises(redhost.UsageError):
        first_units(linear, 1)
