"""Gated composition: identity at first, never more than the base."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.gated import Gated, open_gate
from redhost_mechanisms.linear import zero_linear
from torch import Tensor, nn

D = 8


class Sigmoid(nn.Module):
    """The seed's gate: σ(0) = ½."""

    def __init__(self, *, base: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.base, self.gate = base, gate

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) * torch.sigmoid(self.gate(x))


def test_identity_at_init(linears, rows) -> None:
    base, gate = linears(2)
    x = rows(4)
    halved = Sigmoid(base=base, gate=zero_linear(D, D))
    torch.testing.assert_close(halved(x), base(x) / 2)
    assert torch.equal(Gated(base=base, gate=gate)(x), base(x))
    assert torch.equal(Gated(base=base, gate=zero_linear(D, D), strength=1.0)(x), base(x))


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.floats(-50, 50), st.integers(0, 100))
def test_output_within_the_base(linears, rows, strength: float, seed: int) -> None:
    base, gate = linears(2)
    x = rows(4, seed=seed)
    y = Gated(base=base, gate=gate, strength=strength)(x)
    assert (y.abs() <= base(x).abs()).all()


def test_strength_learns_first_and_the_gate_next(linears, rows) -> None:
    base, gate = linears(2)
    module, x = Gated(base=base, gate=gate), rows(4)
    module(x).sum().backward()
    assert module.strength.grad != 0
    assert not gate.weight.grad.any()
    with torch.no_grad():
        module.strength.fill_(0.1)
    module(x).sum().backward()
    assert gate.weight.grad.any()


def test_an_open_gate_can_close_again() -> None:
    r = torch.tensor([-3.0, 0.0, 5.0], requires_grad=True)
    g = open_gate(r)
    g.sum().backward()
    assert g[0] < 0.1
    assert torch.equal(g[1:], torch.ones(2))
    assert r.grad[2] == r.grad[1] == 0.5


def test_base_and_gate_have_one_width(linears) -> None:
    with pytest.raises(ValueError, match="gate gives width 5, base gives width 8"):
        Gated(base=linears(1)[0], gate=linears(1, D, 5)[0])
