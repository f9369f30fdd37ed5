"""Blend and multi-blend: the weights that were asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.blend import Blend, MultiBlend
from torch import Tensor, nn

D = 8


class SigmoidBlend(nn.Module):
    """The seed's: an alpha of .5 blends .622 to .378."""

    def __init__(self, *, first: nn.Module, second: nn.Module, alpha: float) -> None:
        super().__init__()
        self.first, self.second, self.alpha = first, second, torch.tensor(alpha)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.sigmoid(self.alpha)
        return a * self.first(x) + (1 - a) * self.second(x)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_alpha_is_alpha_at_init(linears, rows, alpha: float, learnable: bool) -> None:
    first, second = linears(2)
    x = rows(4)
    expected = alpha * first(x) + (1 - alpha) * second(x)
    wrong = SigmoidBlend(first=first, second=second, alpha=alpha)
    assert not torch.allclose(wrong(x), expected, atol=1e-2)
    ours = Blend(first=first, second=second, alpha=alpha, learnable=learnable)
    torch.testing.assert_close(ours(x), expected, atol=1e-7, rtol=1e-6)


def test_fixed_blend_is_exact_at_the_ends(linears, rows) -> None:
    first, second = linears(2)
    x = rows(4)
    assert torch.equal(Blend(first=first, second=second, alpha=1.0)(x), first(x))
    assert torch.equal(Blend(first=first, second=second, alpha=0.0)(x), second(x))
    assert not {"alpha"} & dict(Blend(first=first, second=second).named_parameters()).keys()


def test_a_learned_alpha_stays_inside_and_comes_back(linears, rows) -> None:
    first, second = linears(2)
    module = Blend(first=first, second=second, learnable=True)
    with torch.no_grad():
        module.alpha.fill_(1.7)
    x = rows(4)
    torch.testing.assert_close(module(x), first(x))
    module(x).sum().backward()
    assert module.alpha.grad != 0


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_alpha_outside_is_refused(linears, alpha: float) -> None:
    first, second = linears(2)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Blend(first=first, second=second, alpha=alpha)


class UniformBlend(nn.Module):
    """The seed's fixed mode: logits of zero, whatever was asked for."""

    def __init__(self, *, parts: list[nn.Linear], weights: list[float]) -> None:
        super().__init__()
        self.parts, self.logits = nn.ModuleList(parts), torch.zeros(len(weights))

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.logits.softmax(0), self.parts, strict=True)
        return torch.stack([w * part(x) for w, part in pairs]).sum(0)


@pytest.mark.parametrize("learnable", [False, True])
def test_given_weights_are_honoured(linears, rows, learnable: bool) -> None:
    parts, weights, x = linears(3), [0.7, 0.2, 0.1], rows(4)
    expected = torch.stack([w * p(x) for w, p in zip(weights, parts, strict=True)]).sum(0)
    assert not torch.allclose(UniformBlend(parts=parts, weights=weights)(x), expected, atol=1e-2)
    ours = MultiBlend(parts=parts, weights=weights, learnable=learnable)
    torch.testing.assert_close(ours(x), expected)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_weights_sum_to_1_and_stay_so(linears, rows, raw: list[float]) -> None:
    weights = [w / sum(raw) for w in raw]
    module = MultiBlend(parts=linears(len(raw)), weights=weights)
    torch.testing.assert_close(module.current_weights(), torch.tensor(weights))
    module(rows(4)).sum().backward()
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    torch.testing.assert_close(module.current_weights().sum(), torch.tensor(1.0))
    assert (module.current_weights() >= 0).all()


def test_fixed_weights_may_be_0(linears, rows) -> None:
    one, two = linears(2)
    module = MultiBlend(parts=[one, two], weights=[0.0, 1.0], learnable=False)
    assert torch.equal(module(rows(3)), two(rows(3)))
    assert "logits" not in dict(module.named_parameters())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "2 parts take 2 weights, found 1"),
        ([0.7, 0.7], "which sum to 1.4"),
        ([1.5, -0.5], "at least 0"),
        ([1.0, 0.0], "could never grow"),
    ],
)
def test_other_weights_are_refused(linears, weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiBlend(parts=linears(2), weights=weights)


def test_blended_parts_have_one_width(linears) -> None:
    parts = [*linears(1), *linears(1, 5, D)]
    with pytest.raises(ValueError, match="second takes width 5, first takes width 8"):
        Blend(first=parts[0], second=parts[1])
    with pytest.raises(ValueError, match="part 1 takes width 5, part 0 takes width 8"):
        MultiBlend(parts=parts)
