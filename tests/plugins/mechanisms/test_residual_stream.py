"""Residual stream: the recursion, and the identity when nobody writes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.linear import zero_linear
from redhost_mechanisms.residual_stream import ResidualStream
from torch import Tensor, nn

D = 8


def all_read_x(parts: list[nn.Linear], x: Tensor) -> Tensor:
    """Not a stream: nobody reads what another one wrote."""
    return x + torch.stack([part(x) for part in parts]).sum(0)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(st.integers(0, 4), st.integers(0, 50))
def test_equals_the_recursion(linears, rows, count: int, seed: int) -> None:
    parts, x = linears(count, seed=seed), rows(3, seed=seed)
    stream = x
    for part in parts:
        stream = stream + part(stream)
    assert torch.equal(ResidualStream(width=D, parts=parts)(x), stream)
    if count > 1:
        assert not torch.allclose(all_read_x(parts, x), stream)


def test_zero_parts_are_the_identity(rows) -> None:
    x = rows(2, 3)
    assert torch.equal(ResidualStream(width=D, parts=[])(x), x)
    assert torch.equal(ResidualStream(width=D, parts=[zero_linear(D, D)] * 3)(x), x)


def test_a_part_of_another_width_is_named(linears) -> None:
    parts = [nn.GELU(), *linears(1, D, 5)]
    with pytest.raises(ValueError, match="has width 8, found part 1 from width 8 to 5"):
        ResidualStream(width=D, parts=parts)
