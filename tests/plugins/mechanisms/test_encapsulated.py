"""Encapsulated module: the contract holds on both sides, for all of the shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.encapsulated import Encapsulated
from torch import Tensor, nn

D = 8


class AssertsLastDimension(nn.Module):
    """The seed's: an assert, and nothing about the other dimensions or the output."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == D
        return self.part(x)


class MeanOfRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=0)


def raises_value_error(module: nn.Module, x: Tensor) -> bool:
    try:
        module(x)
    except ValueError:
        return True
    except AssertionError:
        return False
    return False


def test_wrong_width_is_a_value_error(linears, rows) -> None:
    (part,) = linears(1)
    x = rows(2, width=5)
    assert not raises_value_error(AssertsLastDimension(part), x)
    assert raises_value_error(Encapsulated(part, input_width=D, output_width=D), x)


def test_a_part_that_loses_rows_is_caught(rows) -> None:
    x = rows(3)
    assert not raises_value_error(AssertsLastDimension(MeanOfRows()), x)
    ours = Encapsulated(MeanOfRows(), input_width=D, output_width=D)
    with pytest.raises(ValueError, match=r"promised shape \(3, 8\), found \(8,\)"):
        ours(x)


def test_a_part_of_another_output_width_is_caught(linears, rows) -> None:
    (part,) = linears(1, D, 5)
    with pytest.raises(ValueError, match=r"promised shape \(2, 6\), found \(2, 5\)"):
        Encapsulated(part, input_width=D, output_width=6)(rows(2))


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.lists(st.integers(0, 3), max_size=3))
def test_any_leading_dimensions(linears, rows, leading: list[int]) -> None:
    (part,) = linears(1, D, 5)
    x = rows(*leading)
    y = Encapsulated(part, input_width=D, output_width=5)(x)
    assert torch.equal(y, part(x))
    assert y.shape == (*leading, 5)
