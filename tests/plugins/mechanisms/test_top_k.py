"""Top-k gating, plain and noisy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms import top_k
from redhost_mechanisms.top_k import noisy_logits, noisy_top_k
from torch import Tensor

E = 5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seeds_noisy_top_k(logits: Tensor, *, k: int, noise: float, generator: torch.Generator):
    """The seed's: noise at any time, and raw logits for weights."""
    return (logits + noise * torch.randn(logits.shape, generator=generator)).topk(k, dim=-1)


def test_eval_is_deterministic(rows) -> None:
    logits, g = rows(6, width=E), generator()
    one, two = (seeds_noisy_top_k(logits, k=2, noise=1.0, generator=g) for _ in "ab")
    assert not torch.equal(one.values, two.values)
    one, two = (noisy_top_k(logits, k=2, noise=1.0, generator=g, training=False) for _ in "ab")
    assert torch.equal(one.weights, two.weights)
    assert torch.equal(one.weights, top_k(logits, k=2).weights)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(2, E), st.floats(0, 3), st.integers(0, 100))
def test_weights_sum_to_1(rows, k: int, noise: float, seed: int) -> None:
    logits = rows(6, width=E, seed=seed)
    wrong = seeds_noisy_top_k(logits, k=k, noise=noise, generator=generator(seed)).values
    assert not torch.allclose(wrong.sum(-1), torch.ones(6))
    ours = noisy_top_k(logits, k=k, noise=noise, generator=generator(seed), training=True)
    torch.testing.assert_close(ours.weights.sum(-1), torch.ones(6))
    torch.testing.assert_close(ours.dense_weights().sum(-1), torch.ones(6))
    assert ((ours.dense_weights() > 0).sum(-1) == k).all()


def test_noise_0_is_top_k(rows) -> None:
    logits = rows(6, width=E)
    one = noisy_top_k(logits, k=2, noise=0.0, generator=None, training=True)
    two = top_k(logits, k=2)
    assert torch.equal(one.weights, two.weights)
    assert torch.equal(one.indices, two.indices)


def test_noise_comes_from_the_generator_only(rows) -> None:
    logits = rows(6, width=E)
    before = torch.get_rng_state()
    one, two, other = (noisy_logits(logits, noise=1.0, generator=generator(s)) for s in (3, 3, 4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="drawn from a generator, found none"):
        noisy_top_k(logits, k=2, noise=1.0, generator=None, training=True)


def test_the_noises_scale_learns(rows) -> None:
    scale = torch.full((6, E), 0.5, requires_grad=True)
    routing = noisy_top_k(rows(6, width=E), k=2, noise=scale, generator=generator(), training=True)
    routing.weights[:, 0].sum().backward()
    assert scale.grad.any()


def test_one_weight_is_the_probability_itself(rows) -> None:
    logits = rows(6, width=E)
    assert torch.equal(top_k(logits, k=1).weights[:, 0], logits.softmax(-1).amax(-1))


def test_without_renormalising_weights_are_entries_of_the_softmax(rows) -> None:
    logits = rows(6, width=E)
    routing = top_k(logits, k=3, renormalise=False)
    assert torch.equal(routing.weights, logits.softmax(-1).gather(-1, routing.indices))


@pytest.mark.parametrize("k", [0, 6])
def test_k_is_a_number_of_experts(rows, k: int) -> None:
    with pytest.raises(ValueError, match=f"between 1 and 5, the number of experts, found {k}"):
        top_k(rows(2, width=E), k=k)


def test_one_renormalised_weight_is_refused(rows) -> None:
    with pytest.raises(ValueError, match="the gate learns nothing"):
        top_k(rows(2, width=E), k=1, renormalise=True)
    assert top_k(rows(2, width=1), k=1, renormalise=True).weights.eq(1).all()
