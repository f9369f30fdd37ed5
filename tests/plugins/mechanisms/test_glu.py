"""GLU: what torch's own does with the same projection."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.glu import GLU
from torch import Tensor, nn


def halves_swapped(projected: Tensor) -> Tensor:
    b, a = projected.chunk(2, dim=-1)
    return a * torch.sigmoid(b)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(1, 5), st.integers(0, 20))
def test_equals_torch(rows, width: int, seed: int) -> None:
    module = GLU(input_width=8, output_width=width, generator=torch.Generator().manual_seed(seed))
    x = rows(4, seed=seed)
    expected = nn.functional.glu(module.linear(x), dim=-1)
    assert torch.equal(module(x), expected)
    assert not torch.allclose(halves_swapped(module.linear(x)), expected)


def test_both_halves_learn(rows) -> None:
    module = GLU(input_width=8, output_width=3, generator=torch.Generator().manual_seed(0))
    module(rows(4)).square().sum().backward()
    assert module.linear.weight.grad.abs().sum(dim=1).all()
