"""Composable sequence: nested application, and mismatches found before anything runs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.glu import GLU
from redhost_mechanisms.sequence import ComposableSequence
from torch import nn


def seeds_check(parts: list[nn.Module]) -> None:
    """The seed's: every part needs attributes that a plain linear layer does not have."""
    for one, two in pairwise(parts):
        assert one.output_dim == two.input_dim


def test_plain_layers_compose(linears, rows) -> None:
    parts = [*linears(1, 8, 5), nn.GELU(), *linears(1, 5, 3)]
    with pytest.raises(AttributeError, match="output_dim"):
        seeds_check(parts)
    assert ComposableSequence(parts=parts)(rows(2)).shape == (2, 3)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_equals_nested_application(linears, rows, widths: list[int]) -> None:
    parts = [linears(1, *pair)[0] for pair in pairwise(widths)]
    x = nested = rows(3, width=widths[0])
    for part in parts:
        nested = part(nested)
    ours = ComposableSequence(parts=parts)
    assert torch.equal(ours(x), nested)
    assert (ours.input_width, ours.output_width) == (widths[0], widths[-1])


def test_a_mismatch_names_the_index(linears) -> None:
    parts = [*linears(1, 8, 5), nn.GELU(), *linears(1, 4, 3)]
    with pytest.raises(ValueError, match=r"part 2 \(Linear\) takes width 4, found width 5"):
        ComposableSequence(parts=parts)


def test_sequences_are_parts_of_sequences(linears, rows) -> None:
    one, two, three = linears(3)
    flat = ComposableSequence(parts=[one, two, three])
    nested = ComposableSequence(parts=[ComposableSequence(parts=[one, two]), three])
    assert torch.equal(flat(rows(2)), nested(rows(2)))
    glu = GLU(input_width=8, output_width=3, generator=torch.Generator())
    assert ComposableSequence(parts=[one, glu]).output_width == 3


def test_a_sequence_needs_one_width() -> None:
    with pytest.raises(ValueError, match="none of its 1 parts says a width"):
        ComposableSequence(parts=[nn.GELU()])
