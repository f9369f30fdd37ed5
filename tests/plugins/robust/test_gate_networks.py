"""Trained gates: uniform at the start, any leading dimensions, seeded."""

from __future__ import annotations

import torch
from redhost_robust.gate_networks import NetworkGate, TabularGate


def test_both_start_uniform() -> None:
    symbols = torch.tensor([[0, 1, 4]])
    torch.testing.assert_close(
        TabularGate(5, 3)(symbols), torch.zeros(1, 3, 3, dtype=torch.float64)
    )
    torch.testing.assert_close(NetworkGate(2, 3)(torch.ones(4, 1, 2)), torch.zeros(4, 1, 3))


def test_every_part_has_a_gradient() -> None:
    gate = NetworkGate(2, 3)
    with torch.no_grad():
        gate.write.weight.normal_(generator=torch.Generator().manual_seed(0))
    gate(torch.ones(4, 2))[:, 0].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in gate.parameters())


def test_the_seed_decides_and_the_global_state_is_untouched() -> None:
    before = torch.get_rng_state()
    first, again, other = (NetworkGate(2, 3, seed=s).read.weight for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
