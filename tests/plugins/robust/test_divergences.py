"""KL, JSD and the identity KL(p_λ ‖ π) = L̃ − JSD_λ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_robust.divergences import (
    entropies,
    jensen_shannon,
    kl,
    linearised_payoff,
    mix,
    payoff,
    worst_kl,
)

P = np.array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])


def test_by_hand() -> None:
    model = np.array([0.25, 0.5, 0.25])
    np.testing.assert_allclose(
        kl(P, model), [0.5 * math.log(2), 0.25 * math.log(0.5) + 0.75 * math.log(3)]
    )
    np.testing.assert_allclose(entropies(P)[0], math.log(2))
    assert worst_kl(P, model) == kl(P, model).max()
    assert jensen_shannon(np.array([0.3, 0.7]), np.eye(2)) == pytest.approx(
        -0.3 * math.log(0.3) - 0.7 * math.log(0.7)
    )


def test_zeros_are_exact_and_infinite_where_they_must_be() -> None:
    assert kl(P, P).tolist() == [0, 0]
    assert kl(P, np.array([1.0, 0, 0])).tolist() == [math.inf, math.inf]
    assert linearised_payoff(np.array([1.0, 0]), P, P[0]) == 0  # 0 · ∞ is 0
    assert jensen_shannon(np.array([1.0, 0]), P) == 0


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 9), st.floats(0.3, 3))
def test_the_identity(games, seed: int, domains: int, symbols: int, scale: float) -> None:
    """For every π, normalised or not."""
    game = games(seed, domains=domains, symbols=symbols)
    lam = np.random.default_rng(seed).dirichlet(np.ones(domains))
    model = scale * game.experts.mean(axis=0)
    left = payoff(lam, game.domains, model)
    right = linearised_payoff(lam, game.domains, model) - jensen_shannon(lam, game.domains)
    assert left == pytest.approx(right, abs=1e-9)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_no_mixture_is_worse_than_the_worst_domain(games, seed: int, domains: int) -> None:
    """Why both games have one value: KL(p_λ ‖ π) is convex in λ."""
    game = games(seed, domains=domains)
    lam = np.random.default_rng(seed).dirichlet(np.ones(domains))
    model = game.experts.mean(axis=0)
    assert payoff(lam, game.domains, model) <= worst_kl(game.domains, model) + 1e-12


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_jsd_is_an_entropy_difference(games, seed: int, domains: int) -> None:
    game = games(seed, domains=domains)
    lam = np.random.default_rng(seed).dirichlet(np.ones(domains))
    whole = entropies(mix(lam, game.domains)[None])[0]
    expected = whole - lam @ entropies(game.domains)
    assert jensen_shannon(lam, game.domains) == pytest.approx(expected, abs=1e-12)
