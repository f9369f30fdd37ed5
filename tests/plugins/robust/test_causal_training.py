"""A trained causal gate: causal, unbiased weights, and close to the best there is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from redhost_robust.causal_training import CausalGate, distillation_loss, train_causal_gate
from redhost_robust.distill import causal_gate, distillation_gap
from redhost_robust.divergences import entropies
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


def test_no_position_sees_itself_or_what_follows() -> None:
    gate = CausalGate(3, 2)
    with torch.no_grad():
        gate.write.weight.normal_(generator=torch.Generator().manual_seed(0))
    paths = torch.tensor([[0, 1, 2, 0]])
    for t in range(4):
        changed = paths.clone()
        changed[:, t:] = (changed[:, t:] + 1) % 3
        assert torch.equal(gate(paths)[:, : t + 1], gate(changed)[:, : t + 1])
        if t < 3:
            assert not torch.allclose(gate(paths)[:, t + 1], gate(changed)[:, t + 1])


def test_it_starts_uniform_with_states_from_its_seed_alone() -> None:
    """The GRU's weights fill ±1/√hidden, as PyTorch's own do."""
    before = torch.get_rng_state()
    gate = CausalGate(3, 2, hidden=25, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(gate(torch.tensor([[0, 1, 2]])), torch.zeros(1, 3, 2))
    weights = torch.cat([tensor.detach().flatten() for tensor in gate.gru.parameters()])
    assert weights.max().item() == pytest.approx(0.2, abs=0.001)
    assert weights.min().item() == pytest.approx(-0.2, abs=0.001)
    assert weights.mean().item() == pytest.approx(0, abs=0.01)


def test_the_weighted_loss_is_the_students_cross_entropy(
    sequences: Sequences, chains: Array, robust: Array
) -> None:
    """Over all (k, x) with their probabilities: H(π_g) + KL(π_g ‖ π_γ)."""
    causal = causal_gate(robust, chains, sequences)
    logs = torch.from_numpy(np.log(sequences.conditionals(chains))).permute(2, 1, 0)
    log_gate = torch.from_numpy(causal).log().transpose(0, 1)
    total = sum(
        # distillation_loss takes a mean over the 81 rows: weight row x by 81 π_k(x) · K g(x,k) / K
        distillation_loss(log_gate, logs, torch.from_numpy(81 * chains[k] * robust[:, k])).item()
        for k in range(3)
    )
    expected = entropies(model_of_gate(robust, chains)[None])[0]
    expected += distillation_gap(robust, causal, chains, sequences)
    assert total == pytest.approx(expected, abs=1e-10)


def test_a_trained_student_is_at_least_as_close_as_the_closed_form(
    sequences: Sequences, chains: Array, robust: Array
) -> None:
    """It minimises KL itself, the closed form a bound of it; untrained it is far off."""
    student = CausalGate(3, 3)
    untrained = np.full((4, 81, 3), 1 / 3)
    found = train_causal_gate(student, gate=robust, experts=chains, sequences=sequences, steps=400)
    closed = distillation_gap(robust, causal_gate(robust, chains, sequences), chains, sequences)
    assert found.gap < closed + 0.005
    assert found.gap < distillation_gap(robust, untrained, chains, sequences) / 2
    assert found.gap == pytest.approx(
        distillation_gap(robust, found.causal, chains, sequences), abs=1e-12
    )


def test_the_rate_falls_to_0(sequences: Sequences, chains: Array, robust: Array) -> None:
    """Adam's first step is the rate; its last one is next to nothing."""
    student, seen = CausalGate(3, 3), []
    student.register_forward_pre_hook(lambda *_: seen.append(student.write.bias.detach().clone()))
    options = {"gate": robust, "experts": chains, "sequences": sequences}
    found = train_causal_gate(student, steps=50, rows=32, learning_rate=0.02, **options)
    moves = torch.stack(seen).diff(dim=0).abs()
    assert len(moves) == 50
    assert moves[0].tolist() == pytest.approx([0.02] * 3, abs=1e-5)
    assert moves[-1].max() < 0.002
    assert found.causal.dtype == np.float64


def test_the_seed_decides(sequences: Sequences, chains: Array, robust: Array) -> None:
    def train(seed: int) -> Array:
        return train_causal_gate(
            CausalGate(3, 3, seed=seed),
            gate=robust,
            experts=chains,
            sequences=sequences,
            steps=5,
            seed=seed,
        ).causal

    assert np.array_equal(train(0), train(0))
    assert not np.array_equal(train(0), train(1))
