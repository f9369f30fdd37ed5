"""Structural distillation: exact for constant gates, measured for the others."""

from __future__ import annotations

import numpy as np
import pytest
from redhost_robust.constant import solve_constant
from redhost_robust.distill import (
    causal_gate,
    constant_causal_gate,
    distillation_gap,
    responsibilities,
    student_model,
)
from redhost_robust.divergences import mix
from redhost_robust.errors import GameError
from redhost_robust.game import Game
from redhost_robust.gates import model_of_gate
from redhost_robust.probability import Array
from redhost_robust.sequences import Sequences
from redhost_robust.solve import solve_gate


@pytest.fixture(scope="module")
def robust(chains: Array) -> Array:
    """Return the robust gate of domains that the chains do not quite match, ``(81, 3)``."""
    draw = np.random.default_rng(1)
    domains = 0.6 * chains + 0.4 * draw.dirichlet(np.ones(81), size=3)
    return solve_gate(Game(domains=domains, experts=chains)).gate


@pytest.mark.parametrize("seed", range(5))
def test_a_constant_gate_has_an_exact_causal_student(
    sequences: Sequences, chains: Array, seed: int
) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(3))
    causal = constant_causal_gate(weights, chains, sequences)
    student = student_model(causal, chains, sequences)
    np.testing.assert_allclose(student, mix(weights, chains), rtol=0, atol=1e-12)
    np.testing.assert_allclose(causal[0], np.tile(weights, (81, 1)), atol=1e-15)


def test_the_weights_alone_are_not_the_student(sequences: Sequences, chains: Array) -> None:
    """Wrong: γ = w at every step, without what the prefix tells of k."""
    weights = np.full(3, 1 / 3)
    fixed = np.broadcast_to(weights, (4, 81, 3)).copy()
    student = student_model(fixed, chains, sequences)
    assert abs(student - mix(weights, chains)).max() > 1e-3


def test_a_robust_constant_gate_keeps_its_guarantee(sequences: Sequences, chains: Array) -> None:
    domains = np.random.default_rng(0).dirichlet(np.ones(81), size=3) * 0.2 + 0.8 * chains
    solved = solve_constant(Game(domains=domains, experts=chains))
    student = student_model(
        constant_causal_gate(solved.weights, chains, sequences), chains, sequences
    )
    np.testing.assert_allclose(student, solved.model, atol=1e-12)


def test_any_student_is_a_distribution_and_causal(
    sequences: Sequences, chains: Array, robust: Array
) -> None:
    causal = causal_gate(robust, chains, sequences)
    assert student_model(causal, chains, sequences).sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(causal.sum(axis=2), 1, atol=1e-12)
    for t in range(4):  # paths with one prefix have one gate
        same = causal[t].reshape(3**t, -1, 3)
        assert (same == same[:, :1]).all()


def test_a_gate_that_sees_the_future_leaves_a_gap(
    sequences: Sequences, chains: Array, robust: Array
) -> None:
    gap = distillation_gap(robust, causal_gate(robust, chains, sequences), chains, sequences)
    assert gap > 1e-3
    constant = np.tile([0.2, 0.3, 0.5], (81, 1))
    exact = causal_gate(constant, chains, sequences)
    assert distillation_gap(constant, exact, chains, sequences) == pytest.approx(0, abs=1e-12)


def test_the_closed_form_is_the_mean_responsibility(
    sequences: Sequences, chains: Array, robust: Array
) -> None:
    """γ*(k | x_<t) = E[r_k | x_<t], so it minimises −Σ_t Σ_k r_k log γ_k."""
    r, teacher = responsibilities(robust, chains), model_of_gate(robust, chains)
    np.testing.assert_allclose(r.sum(axis=1), 1, atol=1e-12)
    causal = causal_gate(robust, chains, sequences)
    weighted = sequences.prefix_masses((r * teacher[:, None]).T)[:, :-1]
    mass = sequences.prefix_masses(teacher[None])[:, :-1]
    np.testing.assert_allclose(causal, (weighted / mass).transpose(1, 2, 0), atol=1e-12)

    def loss(gate: Array) -> float:
        seen = np.broadcast_to(r, gate.shape) > 0
        logs = np.log(np.where(seen, gate, 1.0))
        return float(-(teacher[:, None] * r * logs).sum())

    for seed in range(5):
        other = np.random.default_rng(seed).dirichlet(np.ones(3), size=(4, 81))
        assert loss(0.9 * causal + 0.1 * other) > loss(causal)


def test_what_cannot_be_is_uniform_and_what_does_not_fit_is_refused(sequences: Sequences) -> None:
    experts = np.zeros((2, 81))
    experts[:, 0] = 1
    causal = constant_causal_gate(np.array([0.2, 0.8]), experts, sequences)
    assert causal[3, -1].tolist() == [0.5, 0.5]
    gate = np.full((81, 2), 0.5)
    assert responsibilities(gate, experts)[5].tolist() == [0.5, 0.5]
    with pytest.raises(GameError, match="weights: expected 2 of them, found 1"):
        constant_causal_gate(np.array([1.0]), experts, sequences)
    with pytest.raises(GameError, match=r"^weights: expected a sum of 1"):
        constant_causal_gate(np.array([1.0, 1.0]), experts, sequences)
    with pytest.raises(GameError, match=r"gate: expected shape \(81, 2\), found \(2, 81\)"):
        causal_gate(gate.T, experts, sequences)
