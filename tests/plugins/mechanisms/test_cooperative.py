"""Cooperative parts: attention over answers of another width than x."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.cooperative import AttentiveEnsemble
from torch import nn

D, E = 8, 4


def ensemble(parts: list[nn.Linear], *, seed: int = 0) -> AttentiveEnsemble:
    g = torch.Generator().manual_seed(seed)
    return AttentiveEnsemble(parts=parts, hidden_width=6, generator=g)


def test_keys_have_the_width_of_the_answers(linears, rows) -> None:
    parts, x = linears(E, D, 5), rows(4)
    seeds_key = nn.Linear(D, 6)  # the width of x
    with pytest.raises(RuntimeError, match="shape"):
        seeds_key(torch.stack([p(x) for p in parts], -2))
    assert ensemble(parts)(x).shape == (4, 5)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(1, E), st.integers(0, 100), st.floats(0.1, 30))
def test_output_in_the_convex_hull(linears, rows, count: int, seed: int, scale: float) -> None:
    parts, x = linears(count, D, 5), scale * rows(6, seed=seed)
    module = ensemble(parts, seed=seed)
    answers = torch.stack([p(x) for p in parts], -2)
    weights = module.attention(x, answers)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(6))
    y, slack = module(x), 1e-5 * scale
    assert (y <= answers.amax(-2) + slack).all()
    assert (y >= answers.amin(-2) - slack).all()


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.permutations(range(E)))
def test_permutation_equivariant(linears, rows, options: list[int]) -> None:
    parts, x = linears(E, D, 5), rows(6)
    answers = torch.stack([p(x) for p in parts], -2)
    one, two = ensemble(parts), ensemble([parts[i] for i in options])
    torch.testing.assert_close(two(x), one(x))
    moved = two.attention(x, answers[:, options])
    torch.testing.assert_close(moved, one.attention(x, answers)[:, options])


def test_equals_torchs_attention(linears, rows) -> None:
    parts, x = linears(E, D, 5), rows(6)
    module = ensemble(parts)
    answers = torch.stack([p(x) for p in parts], -2)
    expected = nn.functional.scaled_dot_product_attention(
        module.query(x).unsqueeze(-2), module.key(answers), answers
    )
    torch.testing.assert_close(module(x), expected.squeeze(-2))


def test_queries_keys_and_parts_learn(linears, rows) -> None:
    module = ensemble(linears(E, D, 5))
    module(rows(6)).square().sum().backward()
    assert all(p.grad.any() for n, p in module.named_parameters() if n != "key.bias")
