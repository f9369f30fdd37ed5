"""What holds for every game: the ladder of values, duplicates, permutations, Sion's equality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_robust.constant import disjoint_value, solve_constant
from redhost_robust.divergences import linearised_payoff, payoff
from redhost_robust.game import Game
from redhost_robust.gates import envelope, model_of_gate
from redhost_robust.solve import capacity, solve_gate
from redhost_robust.theorem import expert_divergences
from redhost_robust.water import water_filling

TOL = 1e-8
SEEDS = st.integers(0, 10_000)
KS = st.integers(1, 6)
LAW = settings(deadline=None, derandomize=True, max_examples=40)


@LAW
@given(SEEDS, KS, st.integers(2, 15), st.floats(0, 2))
def test_the_ladder(games, seed: int, domains: int, symbols: int, noise: float) -> None:
    """C ≤ V(G1) ≤ V(constant) ≤ log Σ e^ε."""
    game = games(seed, domains=domains, symbols=symbols, noise=noise)
    floor, gated, constant = capacity(game.domains), solve_gate(game), solve_constant(game)
    assert floor.lower <= gated.upper
    assert gated.lower <= constant.upper
    assert constant.lower <= disjoint_value(expert_divergences(game)) + 1e-12
    assert max(floor.gap, gated.gap, constant.gap) < TOL


@LAW
@given(SEEDS, KS, st.integers(2, 15))
def test_exact_experts_gain_nothing_from_x(games, seed: int, domains: int, symbols: int) -> None:
    rows = games(seed, domains=domains, symbols=symbols).domains
    game = Game(domains=rows, experts=rows)
    floor = capacity(rows).value
    assert solve_gate(game).value == pytest.approx(floor, abs=2 * TOL)
    assert solve_constant(game).value == pytest.approx(floor, abs=2 * TOL)


@LAW
@given(SEEDS, KS, st.integers(0, 5))
def test_a_duplicated_expert_changes_nothing(games, seed: int, domains: int, which: int) -> None:
    game = games(seed, domains=domains)
    copy = game.experts[which % domains][None]
    twice = Game(domains=game.domains, experts=np.vstack([game.experts, copy]))
    for solve in (solve_gate, solve_constant):
        assert solve(twice).value == pytest.approx(solve(game).value, abs=2 * TOL)


@LAW
@given(SEEDS, KS)
def test_a_duplicated_domain_changes_nothing(games, seed: int, domains: int) -> None:
    game = games(seed, domains=domains)
    twice = Game(domains=np.vstack([game.domains, game.domains[:1]]), experts=game.experts)
    for solve in (solve_gate, solve_constant):
        assert solve(twice).value == pytest.approx(solve(game).value, abs=2 * TOL)


@LAW
@given(SEEDS, st.integers(2, 6))
def test_permutations_permute(games, seed: int, domains: int) -> None:
    game = games(seed, domains=domains, noise=1.0)
    draw = np.random.default_rng(seed)
    rows, experts, symbols = (draw.permutation(n) for n in (domains, domains, game.symbols))
    moved = Game(domains=game.domains[rows][:, symbols], experts=game.experts[experts][:, symbols])
    here, there = solve_gate(game, tol=1e-10), solve_gate(moved, tol=1e-10)
    assert there.value == pytest.approx(here.value, abs=1e-9)
    np.testing.assert_allclose(there.model, here.model[symbols], atol=1e-4)
    np.testing.assert_allclose(
        model_of_gate(there.gate[:, np.argsort(experts)], game.experts[:, symbols]),
        model_of_gate(here.gate, game.experts)[symbols],
        atol=1e-4,
    )


@LAW
@given(SEEDS, st.integers(2, 5))
def test_sions_equality(games, seed: int, domains: int) -> None:
    """No λ forces more than the value, no gate gets away with less; KL(p_λ ‖ π) the same."""
    game = games(seed, domains=domains, noise=1.0)
    solved = solve_gate(game, tol=1e-10)
    draw, (m, M) = np.random.default_rng(seed), envelope(game.experts)
    for lam in draw.dirichlet(np.ones(domains), size=10):
        best = water_filling(lam @ game.domains, m, M)
        assert linearised_payoff(lam, game.domains, best) <= solved.value + 1e-9
        assert linearised_payoff(lam, game.domains, solved.model) <= solved.value + 1e-9
        assert payoff(lam, game.domains, solved.model) <= solved.value + 1e-9
    gates = draw.dirichlet(np.ones(domains), size=10) @ game.experts
    for model in gates:
        worst = max(linearised_payoff(corner, game.domains, model) for corner in np.eye(domains))
        assert worst >= solved.value - 1e-9
    found = linearised_payoff(
        solved.lambda_, game.domains, water_filling(solved.lambda_ @ game.domains, m, M)
    )
    assert found == pytest.approx(solved.upper, abs=1e-9)
