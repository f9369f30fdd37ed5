"""Water-filling: in the box, normalised, and optimal by its multipliers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_robust.divergences import kl
from redhost_robust.gates import envelope
from redhost_robust.probability import Array
from redhost_robust.water import water_filling


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.integers(1, 12),
    st.floats(0.02, 5),
)
def test_the_box_the_sum_and_the_optimum(
    games, seed: int, experts: int, symbols: int, peaked: float
) -> None:
    game = games(seed, domains=experts, symbols=symbols, noise=1.0)
    draw = np.random.default_rng(seed)
    p = draw.dirichlet(np.full(symbols, peaked))
    m, M = envelope(game.experts)
    model = water_filling(p, m, M)
    assert model.sum() == pytest.approx(1, abs=1e-12)
    assert (model >= m).all()
    assert (model <= M).all()
    for weights in draw.dirichlet(np.ones(experts), size=5):  # no expert mixture is closer
        assert kl(p[None], model)[0] <= kl(p[None], weights @ game.experts)[0] + 1e-12


def test_by_hand() -> None:
    p, m, M = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.1, 0.2]), np.array([0.5, 0.6, 0.6])
    # .5 at its top, .1 pushed to its bottom .2, the rest .3
    np.testing.assert_allclose(water_filling(p, m, M), [0.5, 0.3, 0.2], atol=1e-15)


def test_what_p_cannot_take_is_spread_over_the_room_of_what_it_never_has() -> None:
    p, m, M = np.array([1.0, 0.0, 0.0]), np.array([0.1, 0.1, 0.2]), np.array([0.4, 0.3, 0.8])
    # .4 at its top, .1 and .2 at their bottoms; .3 is missing, and the rooms are .2 and .6
    np.testing.assert_allclose(water_filling(p, m, M), [0.4, 0.175, 0.425], atol=1e-15)


@pytest.mark.parametrize(
    ("p", "m", "M", "expected"),
    [
        (
            [1.0, 0, 0],
            [0.9, 0, 0],
            [0.9, 0.1, 0.1],
            [0.9, 0.05, 0.05],
        ),  # the rest must go somewhere
        ([0.5, 0.5], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]),  # no freedom at all
        ([1.0], [1.0], [1.0], [1.0]),
        ([0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]),  # the whole simplex: π = p
    ],
)
def test_corners(p: list[float], m: list[float], M: list[float], expected: list[float]) -> None:
    found = water_filling(np.array(p), np.array(m), np.array(M))
    np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize("tiny", [1e-40, 1e-190])
def test_levels_far_above_1(tiny: float) -> None:
    """p is tiny wherever there is room: 1/μ is about 1e40, or 1e190."""
    p = np.array([1 - 2 * tiny, tiny, tiny])
    m, M = np.array([0.1, 0.0, 0.0]), np.array([0.2, 0.5, 0.9])
    found = water_filling(p, m, M)
    np.testing.assert_allclose(found, [0.2, 0.4, 0.4], atol=1e-12)


def test_levels_far_below_1() -> None:
    """Hardly any room is left where p is: 1/μ is 2⁻⁵⁰."""
    least = 2.0**-50
    m, M = np.array([0.0, 1 - least]), np.array([2 * least, 1.0])
    found = water_filling(np.array([1.0, 1e-30]), m, M)
    np.testing.assert_allclose(found, [least, 1 - least], atol=1e-17)


def test_the_model_of_one_expert_is_that_expert() -> None:
    row: Array = np.random.default_rng(0).dirichlet(np.ones(1000))
    assert water_filling(np.full(1000, 1e-3), row, row).tolist() == row.tolist()
