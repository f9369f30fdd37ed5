"""Theorem 3: the bound holds for the robust gate on every mixture, and each term is as defined."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_robust.constant import disjoint_value, disjoint_weights
from redhost_robust.divergences import jensen_shannon, linearised_payoff, mix, payoff
from redhost_robust.errors import GameError
from redhost_robust.game import Game
from redhost_robust.solve import solve_gate
from redhost_robust.theorem import conditional_entropy, expert_divergences, theorem3_bound


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 12), st.floats(0, 2))
def test_the_bound_holds(games, seed: int, domains: int, symbols: int, noise: float) -> None:
    game = games(seed, domains=domains, symbols=symbols, noise=noise)
    solved = solve_gate(game, tol=1e-10)
    mixtures = np.random.default_rng(seed).dirichlet(np.ones(domains), size=8)
    for lam in [*mixtures, *np.eye(domains), solved.lambda_]:
        bound = theorem3_bound(game, lambda_star=solved.lambda_, mixture=lam)
        assert payoff(lam, game.domains, solved.model) <= bound + 1e-9


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_the_first_two_terms_are_the_constant_gates_payoff(games, seed: int, domains: int) -> None:
    """L̃(λ, π_σ) = log Σ e^ε − H_σ^λ(K|X), with equality."""
    game = games(seed, domains=domains)
    lam = np.random.default_rng(seed).dirichlet(np.ones(domains))
    epsilon = expert_divergences(game)
    sigma = disjoint_weights(epsilon)
    entropy = conditional_entropy(game, mixture=lam, weights=sigma)
    left = linearised_payoff(lam, game.domains, mix(sigma, game.experts))
    assert left == pytest.approx(disjoint_value(epsilon) - entropy, abs=1e-9)


def test_the_overlap_of_disjoint_and_of_equal_experts() -> None:
    apart = Game.of_rows(np.eye(3), np.eye(3))
    uniform = np.full(3, 1 / 3)
    assert conditional_entropy(apart, mixture=uniform, weights=uniform) == 0
    alike = Game.of_rows(np.full((3, 2), 0.5), np.full((3, 2), 0.5))
    same = conditional_entropy(alike, mixture=uniform, weights=uniform)
    assert same == pytest.approx(math.log(3))
    # ε = 0, so the bound is log 3 − log 3 − JSD = 0: the gate is exact.
    assert theorem3_bound(alike, lambda_star=uniform, mixture=uniform) == pytest.approx(0)
    assert jensen_shannon(uniform, alike.domains) == pytest.approx(0)


def test_each_term_by_hand() -> None:
    """Half of each domain is what both emit, and one symbol is what none does."""
    rows = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]]
    game = Game.of_rows(rows, rows)
    even, first = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    for lam in (even, first):
        overlap = conditional_entropy(game, mixture=lam, weights=even)
        assert overlap == pytest.approx(0.5 * math.log(2))
    entropy = conditional_entropy(game, mixture=first, weights=np.array([0.2, 0.8]))
    assert entropy == pytest.approx(0.5 * math.log(5))
    # ε = 0: log 2 − ½ log 2 − JSD, where JSD of the even mixture is ½ log 2
    assert theorem3_bound(game, lambda_star=even, mixture=even) == pytest.approx(0, abs=1e-15)
    assert theorem3_bound(game, lambda_star=even, mixture=first) == pytest.approx(math.log(2) / 2)


def test_an_expert_that_misses_its_domain_leaves_no_bound() -> None:
    game = Game.of_rows([[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]])
    lam = np.array([0.5, 0.5])
    assert theorem3_bound(game, lambda_star=lam, mixture=lam) == math.inf
    assert conditional_entropy(game, mixture=lam, weights=lam) == math.inf
    covered = conditional_entropy(game, mixture=np.array([0.0, 1.0]), weights=lam)
    assert covered == 0  # nature stays away from the domain that was missed


def test_what_does_not_fit_is_refused(games) -> None:
    game = games(0)
    uniform = np.full(3, 1 / 3)
    with pytest.raises(GameError, match="mixture: expected 3 weights, found 2"):
        theorem3_bound(game, lambda_star=uniform, mixture=np.array([0.5, 0.5]))
    two = np.array([0.5, 0.5])
    with pytest.raises(GameError, match=r"^mixture: expected 3 weights, found 2"):
        conditional_entropy(game, mixture=two, weights=uniform)
    with pytest.raises(GameError, match=r"^weights: expected 3 weights, found 2"):
        conditional_entropy(game, mixture=uniform, weights=two)
    with pytest.raises(GameError, match=r"^mixture: expected a sum of 1"):
        conditional_entropy(game, mixture=2 * uniform, weights=uniform)
    with pytest.raises(GameError, match="one for each of the 3 domains, found 4"):
        theorem3_bound(games(0, experts=4), lambda_star=uniform, mixture=uniform)
