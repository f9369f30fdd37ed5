"""Newton on the concave dual: its curvature is the dual's, and it converges where plain stalls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from redhost_robust.game import Game
from redhost_robust.gates import envelope
from redhost_robust.iterations import plain_bounds
from redhost_robust.newton import curvature, newton_bounds
from redhost_robust.saddle import BoxGame


def box(game: Game) -> BoxGame:
    return BoxGame(game.domains, *envelope(game.experts))


@pytest.mark.parametrize("seed", range(6))
def test_the_gradient_and_the_curvature_are_those_of_the_dual(games, seed: int) -> None:
    """Against differences of D along directions that keep Σλ = 1."""
    playing = box(games(seed, domains=4, symbols=12))
    draw = np.random.default_rng(seed)
    point, step = playing.at(draw.dirichlet(np.full(4, 5.0))), 1e-5
    scaled = curvature(playing, point) / np.outer(point.lam, point.lam)
    for _ in range(3):
        v = draw.standard_normal(4)
        v -= v.mean()
        up, down = (playing.at(point.lam + side * step * v) for side in (1, -1))
        assert (up.value - down.value) / (2 * step) == pytest.approx(point.losses @ v, abs=1e-7)
        slope = (up.losses - down.losses) @ v / (2 * step)
        assert slope == pytest.approx(-v @ scaled @ v, rel=1e-4, abs=1e-6)
    assert np.linalg.eigvalsh(curvature(playing, point)).min() > -1e-14


def test_symbols_that_nature_never_plays_do_not_bend_the_dual() -> None:
    """The rest of the model is spread over two such symbols, inside their boxes."""
    playing = BoxGame(np.array([[1.0, 0, 0]]), np.array([0.9, 0, 0]), np.array([0.9, 0.1, 0.1]))
    point = playing.at(np.array([1.0]))
    np.testing.assert_allclose(point.model, [0.9, 0.05, 0.05])
    assert curvature(playing, point).tolist() == [[0.0]]


@pytest.mark.parametrize("seed", range(30))
def test_it_closes_any_game_from_the_first_iterate(games, seed: int) -> None:
    draw = np.random.default_rng(seed)
    game = games(
        seed, domains=int(draw.integers(1, 9)), symbols=int(draw.integers(2, 12)), noise=1.0
    )
    playing = box(game)
    start = next(plain_bounds(playing))
    gaps = [b.gap for b in itertools.islice(newton_bounds(playing, start), 40)]
    assert gaps[15] < 1e-10  # 14 steps are the most that one of them needs
    assert (np.diff(gaps) <= 0).all()


def test_a_step_may_not_lose_more_than_it_gains() -> None:
    """Symbols enter and leave their box here: whole steps go to and fro, with a gap of .06."""
    playing = box(
        Game.of_rows(
            [[0.3, 0.08, 0.615, 0.005, 0], [0.005, 0.03, 0.715, 0.25, 0]],
            [[0.167, 0.384, 0.128, 0.243, 0.078], [0, 0.766, 0.234, 0, 0]],
        )
    )
    *_, last = itertools.islice(newton_bounds(playing, next(plain_bounds(playing))), 12)
    assert last.gap < 1e-12


def test_near_duplicates_stall_plain_iterations_and_not_newton(twins) -> None:
    playing = box(twins(0, domains=8, symbols=50, spread=1e-2))
    *_, plain = itertools.islice(plain_bounds(playing), 500)
    assert plain.gap > 2e-6
    *_, newton = itertools.islice(newton_bounds(playing, next(plain_bounds(playing))), 15)
    assert newton.gap < 1e-9
