"""Plain iterations: monotone with step size 1, within log K / t, and no better step is free."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_robust.game import Game
from redhost_robust.gates import envelope
from redhost_robust.iterations import plain_bounds, plain_points, plain_step
from redhost_robust.saddle import BoxGame, Point
from redhost_robust.solve import solve_gate


def box(game: Game) -> BoxGame:
    return BoxGame(game.domains, *envelope(game.experts))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(2, 20), st.floats(0, 2))
def test_the_lower_bound_never_decreases(
    games, seed: int, domains: int, symbols: int, noise: float
) -> None:
    """The iterates' own values, not their running maximum."""
    game = games(seed, domains=domains, symbols=symbols, noise=noise)
    values = [p.value for p in itertools.islice(plain_points(box(game)), 60)]
    assert np.diff(values).min() > -1e-13


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 8), st.floats(0, 2))
def test_both_sides_are_within_log_k_over_t(games, seed: int, domains: int, noise: float) -> None:
    game = games(seed, domains=domains, noise=noise)
    value = solve_gate(game, tol=1e-10).value
    for t, best in enumerate(itertools.islice(plain_bounds(box(game)), 40), start=1):
        assert value - best.lower <= math.log(domains) / t + 1e-9
        assert best.upper - value <= math.log(domains) / t + 1e-9
        assert best.lower <= value + 1e-9
        assert value <= best.upper + 1e-9


def test_a_step_by_hand() -> None:
    """λ · exp(d), normalised: (½, ½) · (2, 1) is (2/3, 1/3) of its sum."""
    lam = np.array([0.5, 0.5])
    point = Point(lam=lam, mixture=lam, model=lam, losses=np.array([3 + math.log(2), 3.0]))
    np.testing.assert_allclose(plain_step(point), [2 / 3, 1 / 3], atol=1e-15)


def test_the_certificate_is_the_best_so_far_and_its_moves_prove_it(games) -> None:
    """In this game the running mean is better than every iterate from the second on."""
    playing = box(games(8, domains=4, symbols=5, noise=0.3, peaked=0.2))
    points = list(itertools.islice(plain_points(playing), 6))
    for t, best in enumerate(itertools.islice(plain_bounds(playing), 6), start=1):
        models = [p.model for p in points[:t]]
        means = [np.mean(models[: n + 1], axis=0) for n in range(t)]
        tried = [playing.losses(model).max() for model in (*models, *means)]
        assert best.upper == pytest.approx(min(tried), abs=1e-14)
        assert best.upper < min(tried[:t]) or t == 1
        assert best.lower == pytest.approx(max(p.value for p in points[:t]), abs=1e-14)
        assert playing.losses(best.host).max() == best.upper
        assert playing.at(best.lam).value == best.lower


def test_decreasing_steps_are_far_slower(games) -> None:
    """The variant with steps 1/√t, from the same start for as many iterations."""
    game = games(1)
    playing = box(game)
    *_, plain = itertools.islice(plain_bounds(playing), 60)
    point = playing.at(np.full(3, 1 / 3))
    lowest = point.value
    for t in range(1, 60):
        lam = point.lam * np.exp((point.losses - point.losses.max()) / math.sqrt(t))
        point = playing.at(lam / lam.sum())
        lowest = max(lowest, point.value)
    value = solve_gate(game, tol=1e-12).value
    assert value - lowest > 30 * max(value - plain.lower, 1e-12)


def test_lambda_stays_above_0() -> None:
    """The third domain is in the middle of the others: λ* is 0 there, λ is not."""
    game = Game.of_rows([[0.99, 0.01], [0.01, 0.99], [0.5, 0.5]], np.eye(2))
    *_, last = itertools.islice(plain_points(box(game)), 2000)
    assert 0 < last.lam[2] < 1e-100
    assert np.isfinite(last.losses).all()
