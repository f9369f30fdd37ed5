"""Straight-through: the value of one tensor, the gradient of the other."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms import straight_through
from torch import Tensor


def rounding_variant(value: Tensor, through: Tensor) -> Tensor:
    return through + (value - through).detach()


finite = st.floats(-1e6, 1e6, width=32)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=8))
def test_value_is_exact_and_gradient_is_the_others(pairs: list[tuple[float, float]]) -> None:
    value = torch.tensor([v for v, _ in pairs], requires_grad=True)
    through = torch.tensor([t for _, t in pairs], requires_grad=True)
    y = straight_through(value, through)
    y.sum().backward()
    assert torch.equal(y, value)
    assert value.grad is None
    assert torch.equal(through.grad, torch.ones_like(through))


def test_the_common_form_rounds() -> None:
    value, through = torch.tensor([0.1]), torch.tensor([1000.0])
    assert not torch.equal(rounding_variant(value, through), value)
    assert torch.equal(straight_through(value, through), value)
