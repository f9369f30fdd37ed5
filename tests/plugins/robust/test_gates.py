"""G1 is the box m ≤ π ≤ M, Σπ = 1: both inclusions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_robust.errors import GameError
from redhost_robust.gates import envelope, gate_of_model, model_of_gate, normaliser
from redhost_robust.water import water_filling

SEEDS = st.integers(0, 10_000)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(SEEDS, st.integers(1, 6), st.integers(1, 9))
def test_every_gate_is_in_the_box(games, seed: int, experts: int, symbols: int) -> None:
    game = games(seed, domains=experts, symbols=symbols)
    gate = np.random.default_rng(seed).dirichlet(np.ones(experts), size=symbols)
    m, M = envelope(game.experts)
    model = model_of_gate(gate, game.experts)
    assert (model >= m - 1e-15).all()
    assert (model <= M + 1e-15).all()
    assert normaliser(gate, game.experts) == pytest.approx(model.sum())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(SEEDS, st.integers(1, 6), st.integers(1, 9))
def test_every_point_of_the_box_is_a_gate(games, seed: int, experts: int, symbols: int) -> None:
    game = games(seed, domains=experts, symbols=symbols)
    target = np.random.default_rng(seed).dirichlet(np.ones(symbols))
    model = water_filling(target, *envelope(game.experts))
    gate = gate_of_model(model, game.experts)
    np.testing.assert_allclose(model_of_gate(gate, game.experts), model, atol=1e-15)
    np.testing.assert_allclose(gate.sum(axis=1), 1, atol=1e-15)
    assert (gate >= 0).all()
    assert normaliser(gate, game.experts) == pytest.approx(1, abs=1e-12)


def test_where_experts_agree_the_first_has_all_the_weight() -> None:
    experts = np.array([[0.5, 0.5], [0.5, 0.5]])
    assert gate_of_model(experts[0], experts).tolist() == [[1, 0], [1, 0]]


def test_a_model_that_rounding_moved_out_of_the_box_has_a_gate_in_the_simplex() -> None:
    experts = np.array([[0.2, 0.8], [0.6, 0.4]])
    for model in (experts[0] + [-1e-12, 1e-12], experts[1] + [1e-12, -1e-12]):
        gate = gate_of_model(model, experts)
        assert sorted(gate.flatten().tolist()) == [0, 0, 1, 1]
        np.testing.assert_allclose(model_of_gate(gate, experts), model, atol=2e-12)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(GameError, match=r"gate: expected shape \(2, 3\), found \(3, 2\)"):
        model_of_gate(np.ones((3, 2)), np.ones((3, 2)))
