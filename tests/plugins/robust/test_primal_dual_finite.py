"""The stochastic algorithm against the exact value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from redhost_robust import primal_dual
from redhost_robust.divergences import entropies, worst_kl
from redhost_robust.game import Game
from redhost_robust.gate_networks import NetworkGate, TabularGate
from redhost_robust.gates import model_of_gate
from redhost_robust.primal_dual_finite import solve_stochastic
from redhost_robust.solve import solve_gate
from redhost_robust.source import FiniteSource
from redhost_robust.stochastic_primal_dual import PrimalDualSettings

SHORT = PrimalDualSettings(steps=1500)


def test_tables_come_within_a_hundredth_of_the_exact_value(games) -> None:
    above, off = [], []
    for seed in range(3):
        draw = np.random.default_rng(seed)
        game = games(seed, domains=int(draw.integers(2, 9)), symbols=int(draw.integers(4, 65)))
        played, solved = solve_stochastic(game, settings=SHORT, seed=seed), solve_gate(game)
        above.append(played.worst_normalised - solved.upper)
        off.append(abs(played.normaliser - 1))
        assert played.lambda_.sum() == pytest.approx(1)
        np.testing.assert_allclose(played.gate.sum(axis=1), 1)
        assert played.worst_normalised >= solved.lower - 0.01
        assert played.worst_normalised == pytest.approx(
            played.worst + np.log(played.normaliser), abs=1e-9
        )
    assert np.median(above) < 0.01
    assert max(off) < 1e-2


def test_a_gate_from_few_samples_is_measured_exactly(games) -> None:
    game = games(0)
    played = solve_stochastic(game, settings=PrimalDualSettings(steps=3), seed=1)
    model = model_of_gate(played.gate, game.experts)
    assert played.gate.dtype == played.lambda_.dtype == np.float64
    assert played.lambda_.sum() == pytest.approx(1)
    assert played.normaliser == pytest.approx(model.sum(), abs=1e-15)
    assert played.worst == pytest.approx(worst_kl(game.domains, model), abs=1e-15)
    exact = worst_kl(game.domains, model / model.sum())
    assert played.worst_normalised == pytest.approx(exact, abs=1e-15)
    assert abs(played.worst - played.worst_normalised) > 1e-6  # its Z is not 1


def test_the_settings_are_those_given(games) -> None:
    """With next to no learning rate the table stays where it starts: uniform."""
    settings = PrimalDualSettings(steps=3, learning_rate=1e-9)
    played = solve_stochastic(games(0), settings=settings)
    np.testing.assert_allclose(played.gate, 1 / 3, atol=1e-7)


def smooth_game() -> tuple[Game, torch.Tensor]:
    """Three bumps on a line of 40 symbols, and the place on the line as the feature."""
    place = np.linspace(-2, 2, 40)
    bumps = np.exp(-3 * (place - np.array([[-1.0], [0.2], [1.0]])) ** 2)
    rows = np.exp(-2 * (place - np.array([[-1.2], [0.0], [1.3]])) ** 2)
    game = Game(
        domains=rows / rows.sum(axis=1, keepdims=True),
        experts=bumps / bumps.sum(axis=1, keepdims=True),
    )
    return game, torch.from_numpy(place).to(torch.float32)[:, None]


def test_a_network_over_features_comes_close(games) -> None:
    game, features = smooth_game()
    gate = NetworkGate(1, 3, hidden=32, seed=0)
    played = solve_stochastic(game, gate=gate, features=features, settings=SHORT)
    assert played.worst_normalised == pytest.approx(solve_gate(game).value, abs=0.01)
    assert abs(played.normaliser - 1) < 1e-2
    assert played.gate.dtype == np.float64  # its averages, though the network is float32
    with torch.no_grad():  # the network itself, which is left with averaged parameters
        table = gate(features).to(torch.float64).softmax(-1).numpy()
    model = model_of_gate(table, game.experts)
    assert worst_kl(game.domains, model / model.sum()) < solve_gate(game).value + 0.01


def test_the_seed_decides(games) -> None:
    game, few = games(0), PrimalDualSettings(steps=60)
    first, again, other = (solve_stochastic(game, settings=few, seed=s) for s in (0, 0, 1))
    assert np.array_equal(first.gate, again.gate)
    assert np.array_equal(first.lambda_, again.lambda_)
    assert not np.array_equal(first.gate, other.gate)


def test_the_entropy_must_be_subtracted() -> None:
    """Cross-entropy alone only looks after the noisy domain."""
    noisy, sharp = np.full(8, 1 / 8), np.array([0.93, *[0.01] * 7])
    game = Game(domains=np.stack([noisy, sharp]), experts=np.stack([noisy, sharp]))
    found = {}
    for name, reference in (("regret", entropies(game.domains)), ("loss", np.zeros(2))):
        gate, source = TabularGate(8, 2), FiniteSource(game, seed=0)
        table, _ = primal_dual(
            source,
            gate,
            reference=torch.from_numpy(reference),
            read=lambda gate=gate, source=source: gate(source.inputs).softmax(-1),
            settings=PrimalDualSettings(steps=800),
        )
        model = model_of_gate(table.numpy(), game.experts)
        found[name] = worst_kl(game.domains, model / model.sum())
    assert found["regret"] == pytest.approx(solve_gate(game).value, abs=0.02)
    assert found["loss"] > 2 * found["regret"]
