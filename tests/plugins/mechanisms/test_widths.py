"""Widths: who says them, who keeps them, and what a message tells."""

from __future__ import annotations

import pytest
import torch
from redhost_mechanisms.additive import Additive
from redhost_mechanisms.encapsulated import Encapsulated
from redhost_mechanisms.widths import Widths, check_width, common_widths, parallel_widths, widths_of
from torch import nn


@pytest.mark.parametrize(
    ("part", "widths"),
    [
        (nn.Linear(3, 5), (3, 5)),
        (nn.LayerNorm(3), (3, 3)),
        (nn.Sequential(nn.GELU(), nn.Linear(3, 5), nn.Dropout(), nn.Linear(5, 2)), (3, 2)),
        (Encapsulated(nn.Flatten(), input_width=3, output_width=5), (3, 5)),
        (Additive(base=nn.Identity(), parts=[nn.Linear(3, 3)]), (3, 3)),
    ],
)
def test_parts_say_their_widths(part: nn.Module, widths: tuple[int, int]) -> None:
    assert widths_of(part) == Widths(input=widths[0], output=widths[1])


@pytest.mark.parametrize("part", [nn.Identity(), nn.GELU(), nn.Sequential(nn.ReLU(), nn.Dropout())])
def test_what_keeps_any_width_has_none(part: nn.Module) -> None:
    assert widths_of(part) is None


def test_a_silent_part_is_an_error_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"Flatten does not say its widths. Wrap it: Encapsulated"):
        widths_of(nn.Flatten())


def test_a_broken_sequential_names_the_index() -> None:
    with pytest.raises(ValueError, match=r"part 2 \(Linear\) takes width 4, found width 5"):
        widths_of(nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(4, 2)))


def test_a_scalar_has_no_width() -> None:
    with pytest.raises(ValueError, match="X takes width 3, found a scalar"):
        check_width(torch.tensor(1.0), 3, who="X")


def test_parallel_parts_agree_on_their_input() -> None:
    parts = {"one": nn.Identity(), "two": nn.Linear(3, 5)}
    assert parallel_widths(parts, who="X")["one"] == Widths(input=3, output=3)
    with pytest.raises(ValueError, match="X: three takes width 4, two takes width 3"):
        parallel_widths(parts | {"three": nn.Linear(4, 5)}, who="X")
    with pytest.raises(ValueError, match="X: two gives width 5, one gives width 3"):
        common_widths(parts, who="X")
    with pytest.raises(ValueError, match="none of its 1 parts says a width"):
        parallel_widths({"one": nn.Identity()}, who="X")
