"""The exact solver: closed forms, SLSQP, sizes, and the certificate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from redhost_robust.divergences import kl, worst_kl
from redhost_robust.errors import GameError
from redhost_robust.game import Game
from redhost_robust.gates import envelope, model_of_gate, normaliser
from redhost_robust.probability import Array
from redhost_robust.solve import capacity, solve_gate
from scipy.optimize import minimize

H11 = -0.11 * math.log(0.11) - 0.89 * math.log(0.89)

CHANNELS = {
    "binary symmetric .11": ([[0.89, 0.11], [0.11, 0.89]], math.log(2) - H11, (0.5, 0.5)),
    "Z": ([[1.0, 0.0], [0.5, 0.5]], math.log(1.25), (0.6, 0.4)),
    "erasure .3": ([[0.7, 0.3, 0.0], [0.0, 0.3, 0.7]], 0.7 * math.log(2), (0.5, 0.5)),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_closed_forms(name: str) -> None:
    """Exact experts: V(G1) is the capacity, and no gate gets below it."""
    rows, value, lam = CHANNELS[name]
    game = Game.of_rows(rows, rows)
    for solved in (solve_gate(game, tol=1e-10), capacity(game.domains, tol=1e-10)):
        assert solved.value == pytest.approx(value, abs=1e-9)
        np.testing.assert_allclose(solved.lambda_, lam, atol=1e-5)
        assert solved.lower <= solved.value <= solved.upper
        assert solved.converged


def slsqp(game: Game) -> float:
    """min t over (π, t) with KL(p_k ‖ π) ≤ t, Σπ = 1 and π in the box."""
    m, M = envelope(game.experts)
    start = game.experts.mean(axis=0)

    def slack(v: Array) -> Array:
        return v[-1] - kl(game.domains, v[:-1])

    def gradient(v: Array) -> Array:
        return np.hstack([game.domains / v[:-1], np.ones((len(game.domains), 1))])

    one = np.append(np.ones(game.symbols), 0.0)
    found = minimize(
        lambda v: v[-1],
        np.append(start, worst_kl(game.domains, start)),
        jac=lambda v: np.append(np.zeros(game.symbols), 1.0),
        bounds=[*zip(m, M, strict=True), (0, None)],
        constraints=[
            {"type": "ineq", "fun": slack, "jac": gradient},
            {"type": "eq", "fun": lambda v: one @ v - 1, "jac": lambda v: one},
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(50))
def test_slsqp_agrees(games, seed: int) -> None:
    """Also Sion's equality: SLSQP minimises over π, the lower bound maximises over λ."""
    draw = np.random.default_rng(seed)
    game = games(
        seed, domains=int(draw.integers(2, 6)), symbols=int(draw.integers(3, 9)), peaked=1.0
    )
    solved = solve_gate(game, tol=1e-9)
    assert solved.converged
    other = slsqp(game)
    assert other == pytest.approx(solved.value, abs=1e-6)
    assert other == pytest.approx(solved.lower, abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_the_gate_is_what_the_certificate_says(games, seed: int) -> None:
    game = games(seed, domains=5, symbols=30)
    solved = solve_gate(game)
    model = model_of_gate(solved.gate, game.experts)
    assert solved.gate.shape == (30, 5)
    assert normaliser(solved.gate, game.experts) == pytest.approx(1, abs=1e-12)
    assert worst_kl(game.domains, model) == pytest.approx(solved.upper, abs=1e-12)
    assert solved.lambda_.sum() == pytest.approx(1, abs=1e-12)
    assert solved.lower <= solved.value <= solved.upper
    assert solved.gap < 1e-8


def test_sizes_and_near_duplicates_converge(games, twins) -> None:
    """K = 64 needs thousands of plain iterations, near duplicates many more."""
    for game in (
        games(0, domains=64, symbols=1000),
        games(0, domains=64, symbols=16),
        games(1, domains=2, symbols=10_000),
        games(1, domains=64, symbols=10_000),
        twins(1, domains=64, symbols=300, spread=1e-3),
        twins(1, domains=8, symbols=10_000, spread=1e-2),
    ):
        solved = solve_gate(game, tol=1e-9)
        assert solved.converged
        assert solved.iterations < 500


def test_plain_iterations_alone_do_not_close_them(games) -> None:
    solved = solve_gate(games(0, domains=64, symbols=64), max_newton=0)
    assert not solved.converged
    assert solved.lower <= solve_gate(games(0, domains=64, symbols=64)).value <= solved.upper


@pytest.mark.parametrize(("plain", "newton", "taken"), [(1, 0, 1), (3, 0, 3), (3, 1, 4), (3, 2, 5)])
def test_steps_of_both_kinds_are_counted_and_bounded(
    games, plain: int, newton: int, taken: int
) -> None:
    game = games(0, domains=64, symbols=64)
    assert solve_gate(game, max_plain=plain, max_newton=newton).iterations == taken


def test_plain_iterations_that_stall_give_up_early(twins) -> None:
    game = twins(0, domains=8, symbols=50, spread=1e-2)
    solved = solve_gate(game)
    assert solved.converged
    assert solved.iterations < 60


def test_one_domain_and_one_expert() -> None:
    row, expert = [[0.2, 0.8]], [[0.5, 0.5]]
    solved = solve_gate(Game.of_rows(row, expert))
    assert solved.gate.tolist() == [[1.0], [1.0]]
    assert solved.model.tolist() == expert[0]
    assert solved.value == pytest.approx(kl(np.array(row), np.array(expert[0]))[0], abs=1e-15)


def test_a_single_symbol_and_experts_without_any_freedom() -> None:
    assert solve_gate(Game.of_rows([[1.0]], [[1.0]])).value == 0
    solved = solve_gate(Game.of_rows(np.eye(3), np.full((3, 3), 1 / 3)))
    assert solved.value == pytest.approx(math.log(3))


def test_a_domain_that_is_no_distribution_is_named() -> None:
    with pytest.raises(GameError, match=r"^domains\[1\]: expected a sum of 1"):
        capacity([[0.5, 0.5], [0.5, 0.4]])


def test_disjoint_domains_have_capacity_log_k() -> None:
    assert capacity(np.eye(7)).value == pytest.approx(math.log(7), abs=1e-12)


@pytest.mark.parametrize("tol", [0.0, 1e-13, float("nan")])
def test_a_tolerance_below_rounding_is_refused(games, tol: float) -> None:
    with pytest.raises(GameError) as caught:
        solve_gate(games(0), tol=tol)
    assert str(caught.value) == f"tol: expected at least 1e-12 nats, found {tol}"
