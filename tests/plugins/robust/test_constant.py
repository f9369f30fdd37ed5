"""Constant gates: the closed form, the certificate, and SLSQP."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from redhost_robust.constant import (
    constant_value,
    disjoint_value,
    disjoint_weights,
    log_sum_exp,
    solve_constant,
)
from redhost_robust.constant_newton import constant_bounds
from redhost_robust.divergences import kl
from redhost_robust.errors import GameError
from redhost_robust.game import Game
from redhost_robust.solve import solve_gate
from redhost_robust.theorem import expert_divergences
from scipy.optimize import minimize


def disjoint_game(seed: int, *, domains: int, block: int) -> Game:
    draw = np.random.default_rng(seed)
    rows = np.zeros((2, domains, domains * block))
    for k in range(domains):
        rows[:, k, k * block : (k + 1) * block] = draw.dirichlet(np.ones(block), size=2)
    return Game(domains=rows[0], experts=rows[1])


@pytest.mark.parametrize(("seed", "domains"), [(0, 2), (1, 3), (2, 8), (3, 20)])
def test_disjoint_supports(seed: int, domains: int) -> None:
    """log Σ e^{ε}, weights softmax(ε); a gate that sees x does better."""
    game = disjoint_game(seed, domains=domains, block=4)
    epsilon = expert_divergences(game)
    solved = solve_constant(game, tol=1e-10)
    assert solved.value == pytest.approx(disjoint_value(epsilon), abs=1e-8)
    np.testing.assert_allclose(solved.weights, disjoint_weights(epsilon), atol=1e-5)
    assert solved.converged
    assert solve_gate(game).upper < solved.lower - 1e-3


def slsqp(game: Game) -> float:
    """min t over (w, t) with KL(p_k ‖ π_w) ≤ t and w in the simplex."""
    parts = len(game.experts)
    uniform = np.full(parts, 1 / parts)
    one = np.append(np.ones(parts), 0.0)
    found = minimize(
        lambda v: v[-1],
        np.append(uniform, constant_value(game, uniform)),
        jac=lambda v: np.append(np.zeros(parts), 1.0),
        bounds=[(1e-12, 1)] * parts + [(0, None)],
        constraints=[
            {"type": "ineq", "fun": lambda v: v[-1] - kl(game.domains, v[:-1] @ game.experts)},
            {"type": "eq", "fun": lambda v: one @ v - 1, "jac": lambda v: one},
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(25))
def test_slsqp_agrees(games, seed: int) -> None:
    game = games(seed, domains=3, experts=2 + seed % 3, symbols=6, peaked=1.0)
    solved = solve_constant(game, tol=1e-9)
    assert slsqp(game) == pytest.approx(solved.value, abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_the_weights_are_what_the_certificate_says(games, seed: int) -> None:
    game = games(seed, domains=6, experts=4, symbols=20, noise=1.0)
    solved = solve_constant(game)
    assert constant_value(game, solved.weights) == pytest.approx(solved.upper, abs=1e-12)
    assert solved.lower <= solved.value <= solved.upper
    assert solved.gap < 1e-8
    assert solved.lambda_.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(solved.model, solved.weights @ game.experts, atol=1e-15)
    for weights in np.random.default_rng(seed).dirichlet(np.ones(4), size=50):
        # λ alone holds every constant gate to the lower bound
        losses = kl(game.domains, weights @ game.experts)
        assert solved.lambda_ @ losses >= solved.lower - 1e-12
        assert constant_value(game, weights) == pytest.approx(losses.max(), abs=1e-12)


def test_usual_games_take_about_twenty_steps(games) -> None:
    steps = [
        solve_constant(
            games(seed, domains=6, experts=4, symbols=20, noise=1.0), tol=1e-10
        ).iterations
        for seed in range(10)
    ]
    assert np.mean(steps) < 20  # 19.1 as this is written


def test_duplicates_near_duplicates_and_sizes_converge(games, twins) -> None:
    copies = games(3, domains=4, experts=12, noise=0.0)  # every expert three times
    same = Game(domains=copies.domains, experts=copies.experts[:4])
    assert solve_constant(copies).value == pytest.approx(solve_constant(same).value, abs=1e-8)
    for game in (
        games(0, domains=64, symbols=1000),
        games(1, domains=64, symbols=10_000),
        twins(1, domains=16, symbols=300, spread=1e-3),
    ):
        solved = solve_constant(game, tol=1e-9)
        assert solved.converged
        assert solved.iterations < 80


def test_a_symbol_that_nothing_emits_changes_nothing(games) -> None:
    game, edge = games(0), [(0, 0), (0, 1)]
    wide = Game(domains=np.pad(game.domains, edge), experts=np.pad(game.experts, edge))
    assert solve_constant(wide).value == pytest.approx(solve_constant(game).value, abs=1e-12)


def test_steps_that_gain_no_more_do_no_harm(games) -> None:
    """Long after rounding has stopped it, the certificate is as it was."""
    for seed in range(3):
        game = games(seed, domains=4, experts=5, symbols=12, noise=1.0)
        gaps = [best.gap for best in itertools.islice(constant_bounds(game), 150)]
        assert (np.diff(gaps) <= 0).all()
        assert abs(gaps[-1]) < 1e-12


def test_one_expert_has_weight_1() -> None:
    game = Game.of_rows([[0.2, 0.8], [0.4, 0.6]], [[0.5, 0.5]])
    solved = solve_constant(game)
    assert solved.weights.tolist() == [1.0]
    assert solved.value == pytest.approx(kl(game.domains, game.experts[0]).max(), abs=1e-8)


def test_log_sum_exp_does_not_overflow() -> None:
    assert log_sum_exp(np.array([1000.0, 1000.0])) == pytest.approx(1000 + math.log(2))
    assert log_sum_exp(np.array([0.0, math.inf])) == math.inf
    np.testing.assert_allclose(disjoint_weights(np.array([1000.0, 1000.0])), [0.5, 0.5])


def test_weights_outside_the_simplex_are_refused(games) -> None:
    with pytest.raises(GameError, match="weights: expected 3 of them, found 2"):
        constant_value(games(0), np.array([0.5, 0.5]))
    with pytest.raises(GameError, match="weights: expected a sum of 1"):
        constant_value(games(0), np.array([0.5, 0.5, 0.5]))
