"""The parts of the stochastic algorithm: each estimate is unbiased, each step is as written."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from redhost.core.robust import (
    FiniteSource,
    GameError,
    PrimalDualSettings,
    cross_entropies,
    mix,
    mixture_step,
    model_of_gate,
    normaliser,
    normaliser_estimate,
)

F64 = torch.float64


@pytest.fixture(scope="module")
def log_gate() -> torch.Tensor:
    """Return a random gate over 6 symbols and 3 experts, as logs."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, dtype=F64, generator=generator).log_softmax(-1)


def test_z_is_unbiased(games, log_gate) -> None:
    game = games(0)
    symbols = FiniteSource(game, seed=0).expert_batch(100_000)
    exact = normaliser(log_gate.exp().numpy(), game.experts)
    assert abs(exact - 1) > 0.02
    assert normaliser_estimate(log_gate[symbols]).item() == pytest.approx(exact, abs=5e-3)


def test_cross_entropies_are_those_of_the_gated_model(games, log_gate) -> None:
    game = games(0)
    symbols, logs = FiniteSource(game, seed=0).domain_batch(100_000)
    exact = -game.domains @ np.log(model_of_gate(log_gate.exp().numpy(), game.experts))
    found = cross_entropies(log_gate[symbols], logs)
    np.testing.assert_allclose(found.numpy(), exact, atol=2e-2)


def test_the_mixture_moves_to_the_worst_domain_and_stays_in_the_simplex() -> None:
    lam = torch.tensor([0.2, 0.3, 0.5], dtype=F64)
    regrets = torch.tensor([1.0, 0.0, -1.0], dtype=F64)
    moved = mixture_step(lam, regrets, rate=0.1, explore=0.0)
    torch.testing.assert_close(moved / moved.sum(), moved)
    expected = lam * (0.1 * regrets).exp()
    torch.testing.assert_close(moved, expected / expected.sum())
    far = mixture_step(lam, 1e6 * regrets, rate=1.0, explore=0.03)
    torch.testing.assert_close(far, torch.tensor([0.98, 0.01, 0.01], dtype=F64))


def test_a_uniform_gate_is_the_plain_average(games) -> None:
    game = games(0)
    model = model_of_gate(np.full((6, 3), 1 / 3), game.experts)
    np.testing.assert_allclose(model, mix(np.full(3, 1 / 3), game.experts))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *((name, 0, "at least 1") for name in ("rows", "steps", "every")),
        ("learning_rate", 0.0, "a number above 0"),
        ("rate", math.inf, "a number above 0"),
        ("penalty", math.nan, "a number above 0"),
        ("explore", 1.0, "a number in [0, 1)"),
        ("explore", -0.1, "a number in [0, 1)"),
    ],
)
def test_settings_outside_their_range_are_refused(name: str, value: float, expected: str) -> None:
    with pytest.raises(GameError) as caught:
        PrimalDualSettings(**{name: value})
    assert str(caught.value) == f"{name}: expected {expected}, found {value}"


def test_the_ends_of_the_ranges_are_welcome() -> None:
    assert PrimalDualSettings(rows=1, steps=1, every=1, explore=0.0).explore == 0
