"""Replaceable slot: empty, filled, swapped; nothing else moves."""

from __future__ import annotations

import pytest
import torch
from redhost_mechanisms.sequence import ComposableSequence
from redhost_mechanisms.slot import Slot
from torch import Tensor, nn

D = 8


class SeedsSlot(nn.Module):
    """The seed's: zeros of the default dtype, and a part that stays as it came."""

    part: nn.Module | None = None

    def attach(self, part: nn.Module) -> None:
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(*x.shape[:-1], 5) if self.part is None else self.part(x)


def slot() -> Slot:
    return Slot(input_width=D, output_width=5)


def test_an_empty_slot_gives_zeros_of_x_dtype(rows) -> None:
    x = rows(2, 3).bfloat16()
    assert SeedsSlot()(x).dtype != x.dtype
    y = slot()(x)
    assert y.dtype == x.dtype
    assert y.shape == (2, 3, 5)
    assert not y.any()


def test_the_part_takes_on_the_slots_mode_and_device(linears) -> None:
    part = nn.Sequential(*linears(1, D, 5), nn.Dropout())
    wrong = SeedsSlot().eval()
    wrong.attach(part)
    assert part.training
    slot().eval().attach(part)
    assert not part.training
    there = slot().to("meta")
    there.attach(part)
    assert {p.device.type for p in part.parameters()} == {"meta"}


def test_the_part_keeps_its_dtype(linears) -> None:
    part = linears(1, D, 5)[0].bfloat16()
    slot().attach(part)
    assert part.weight.dtype == torch.bfloat16


def test_a_swap_leaves_all_else_bit_equal(linears, rows) -> None:
    before, after = linears(1)[0], linears(1, 5, 3)[0]
    one, two = linears(2, D, 5)
    place = Slot(input_width=D, output_width=5, part=one)
    whole = ComposableSequence(parts=[before, place, after])
    x = rows(4)
    answer = whole(x)
    rest = {k: v.clone() for k, v in whole.state_dict().items() if not k.startswith("parts.1.")}
    assert place.attach(two) is one
    assert not torch.equal(whole(x), answer)
    assert all(torch.equal(whole.state_dict()[k], v) for k, v in rest.items())
    assert place.attach(one) is two
    assert torch.equal(whole(x), answer)


def test_detaching_returns_the_part(linears, rows) -> None:
    (part,) = linears(1, D, 5)
    place = Slot(input_width=D, output_width=5, part=part)
    assert place.detach() is part
    assert place.detach() is None
    assert not place(rows(2)).any()
    assert not [*place.parameters()]


def test_state_round_trip(linears, rows) -> None:
    one, two = linears(2, D, 5)
    source, goal = slot(), slot()
    source.attach(one)
    goal.attach(two)
    goal.load_state_dict(source.state_dict())
    assert torch.equal(goal(rows(3)), source(rows(3)))
    assert set(source.state_dict()) == {"part.weight", "part.bias"}
    assert not slot().state_dict()


def test_a_part_that_does_not_fit_is_refused_and_nothing_changes(linears) -> None:
    (part,) = linears(1, D, 5)
    place = Slot(input_width=D, output_width=5, part=part)
    for wrong in (linears(1, D, 4)[0], nn.Identity()):
        with pytest.raises(ValueError, match="from width 8 to 5, found"):
            place.attach(wrong)
    assert place.part is part
