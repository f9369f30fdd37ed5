"""The parts of the stochastic algorithm: each estimate is unbiased, each step is as written."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from redhost_robust import primal_dual
from redhost_robust.divergences import mix
from redhost_robust.errors import GameError
from redhost_robust.gate_networks import TabularGate
from redhost_robust.gates import model_of_gate, normaliser
from redhost_robust.source import FiniteSource
from redhost_robust.stochastic_primal_dual import (
    PrimalDualSettings,
    cross_entropies,
    mixture_step,
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


class Rows:
    """A source of the same rows for ever: one of each domain, and two batches of the experts."""

    domains = 2
    experts = 2

    def __init__(self) -> None:
        self.requested: list[int] = []
        self._expert_inputs = itertools.cycle([torch.tensor([[0], [1]]), torch.tensor([[2], [1]])])

    def domain_batch(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.requested.append(rows)
        log_experts = torch.tensor([[[0.5, 0.25]], [[0.2, 0.7]]], dtype=F64).log()
        return torch.tensor([[0], [1]]), log_experts

    def expert_batch(self, rows: int) -> torch.Tensor:
        self.requested.append(rows)
        return next(self._expert_inputs)


def table(*rows: list[float]) -> TabularGate:
    """Return a gate with these weights at each symbol."""
    gate = TabularGate(len(rows), len(rows[0]))
    with torch.no_grad():
        gate.table.copy_(torch.tensor(rows, dtype=F64).log())
    return gate


REFERENCE = torch.tensor([0.5, 0.1], dtype=F64)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_gradient_mu_and_lambda_of_a_step_by_hand(steps: int) -> None:
    """Z₁ = .8 + .6 and Z₂ = .3 + .6; the mixed probabilities are .45 and .5.

    With a learning rate of next to nothing the second step sees the same, but for μ and λ.
    """
    source, gate = Rows(), table([0.8, 0.2], [0.4, 0.6], [0.3, 0.7])
    settings = PrimalDualSettings(
        rows=1, steps=steps, learning_rate=1e-12, rate=0.4, penalty=2.0, explore=0.1
    )
    mean, lam = primal_dual(
        source, gate, reference=REFERENCE, read=gate.table.detach, settings=settings
    )
    regrets = -torch.tensor([0.45, 0.5], dtype=F64).log() - REFERENCE
    mixtures = [torch.full((2,), 0.5, dtype=F64)]
    for _ in range(steps):
        mixtures.append(mixture_step(mixtures[-1], regrets, rate=0.4, explore=0.1))
    mu = [1.0, 1.0 + 0.4 * (1.15 - 1)][steps - 1]
    slope = mu + 2.0 * (0.9 - 1)  # of Z₁; Z₂ has none
    first, second = mixtures[-2].tolist()
    by_first = (-first * (0.5 - 0.25) / 0.45 + slope) * 0.8 * 0.2
    by_second = (-second * (0.7 - 0.2) / 0.5 + slope) * 0.6 * 0.4
    expected = [[by_first, -by_first], [-by_second, by_second], [0, 0]]
    assert gate.table.grad is not None
    torch.testing.assert_close(gate.table.grad, torch.tensor(expected, dtype=F64))
    torch.testing.assert_close(lam, mixtures[-1])
    torch.testing.assert_close(mean, gate.table.detach())
    assert source.requested == [1] * 3 * steps


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(7, 2, [4, 6]), (6, 3, [3, 5]), (9, 3, [6, 8]), (6, 10, [5]), (1, 1, [0])],
)
def test_the_second_half_is_averaged(steps: int, every: int, expected: list[int]) -> None:
    """What is read every so often and at the last step, counted from 0, and the gate itself."""
    gate, seen, read = table([0.8, 0.2], [0.4, 0.6], [0.3, 0.7]), [], []
    gate.register_forward_pre_hook(lambda *_: seen.append(1))

    def note() -> torch.Tensor:
        read.append((len(seen) - 1, gate.table.detach().clone()))
        return gate.table.detach().exp()

    settings = PrimalDualSettings(steps=steps, every=every, learning_rate=0.1)
    mean, lam = primal_dual(Rows(), gate, reference=REFERENCE, read=note, settings=settings)
    assert [step for step, _ in read] == expected
    tables = torch.stack([found for _, found in read])
    torch.testing.assert_close(gate.table.detach(), tables.mean(0))
    torch.testing.assert_close(mean, tables.exp().mean(0))
    assert lam.sum().item() == pytest.approx(1)


def test_adams_rate_falls_along_a_cosine() -> None:
    """Where the gate is sure of the wrong expert the slope is ±1, so a step is its rate."""

    class Wrong(Rows):
        def domain_batch(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor([[0], [0]]), torch.tensor([[[0.0, -200.0]]] * 2, dtype=F64)

    gate, seen = TabularGate(3, 2), []
    with torch.no_grad():
        gate.table[:] = torch.tensor([-50.0, 50.0])
    gate.register_forward_pre_hook(lambda *_: seen.append(gate.table[0, 0].item()))
    primal_dual(
        Wrong(),
        gate,
        reference=torch.zeros(2, dtype=F64),
        read=gate.table.detach,
        settings=PrimalDualSettings(steps=4, learning_rate=0.1),
    )
    shares = [(1 + math.cos(math.pi * t / 4)) / 2 for t in range(3)]
    assert np.diff(seen) == pytest.approx([0.1 * share for share in shares], abs=1e-6)
