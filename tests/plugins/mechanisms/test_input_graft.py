"""Input graft: a tap whose transform is trained."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from redhost_mechanisms.input_graft import InputGraft
from torch import Tensor, nn

D = 8


class PlainGraft:
    """The seed's: not a module, so nothing finds the transform's parameters."""

    def __init__(self, *, source: str, transform: nn.Module) -> None:
        self.source, self.transform = source, transform

    def __call__(self, activations: Mapping[str, Tensor]) -> Tensor:
        return self.transform(activations[self.source])


class Holder(nn.Module):
    def __init__(self, graft: PlainGraft | InputGraft) -> None:
        super().__init__()
        self.graft = graft


def test_the_transform_is_found_and_trained(linears, rows) -> None:
    (transform,) = linears(1, D, 5)
    assert not [*Holder(PlainGraft(source="a", transform=transform)).parameters()]
    holder = Holder(InputGraft(source="a", width=D, transform=transform))
    before = transform.weight.detach().clone()
    holder.graft({"a": rows(4)}).square().sum().backward()
    torch.optim.SGD(holder.parameters(), lr=0.1).step()
    assert not torch.equal(transform.weight, before)


def test_it_reads_its_layer(linears, rows) -> None:
    (transform,) = linears(1, D, 5)
    x = rows(2, 3)
    graft = InputGraft(source="a", width=D, transform=transform)
    assert torch.equal(graft({"a": x, "b": rows(1)}), transform(x))
    assert (graft.input_width, graft.output_width) == (D, 5)
    assert InputGraft(source="a", width=D)({"a": x}) is x


def test_an_unknown_layer_names_the_known_ones(rows) -> None:
    graft = InputGraft(source="layre1", width=D)
    with pytest.raises(ValueError, match="Did you mean 'layer1'\\? Known: layer1, head"):
        graft({"layer1": rows(2), "head": rows(2)})


def test_another_width_is_refused(linears, rows) -> None:
    with pytest.raises(ValueError, match="at layer 'a' takes width 8, found width 5"):
        InputGraft(source="a", width=D)({"a": rows(2, width=5)})
    with pytest.raises(ValueError, match="gives width 8, found a transform that takes 5"):
        InputGraft(source="a", width=D, transform=linears(1, 5, D)[0])
