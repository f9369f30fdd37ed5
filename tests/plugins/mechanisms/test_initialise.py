"""Initialisation for grafting: exactly nothing at first, for any net, and a gradient at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from redhost_mechanisms.additive import Additive
from redhost_mechanisms.encapsulated import Encapsulated
from redhost_mechanisms.gated import Gated
from redhost_mechanisms.glu import GLU
from redhost_mechanisms.initialise import init_for_grafting
from redhost_mechanisms.linear import seeded_linear
from redhost_mechanisms.residual_stream import ResidualStream
from torch import Tensor, nn

D = 8


def linear(taken: int = D, given: int = D) -> nn.Linear:
    return seeded_linear(taken, given, generator=torch.Generator().manual_seed(taken))


class Named(nn.Module):
    """A net whose last layer is registered first, and named like nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.z = linear(16, D)
        self.a = linear(D, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.z(self.scale * self.a(x).relu())


class Raw(nn.Module):
    """A net without any layer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(D))

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() @ self.w


def mlp(*tail: nn.Module) -> nn.Sequential:
    return nn.Sequential(linear(D, 16), nn.GELU(), nn.LayerNorm(16), linear(16, D), *tail)


NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "dropout last": lambda: mlp(nn.Dropout(0.5)),
    "norm last": lambda: mlp(nn.LayerNorm(D)),
    "tanh last": lambda: mlp(nn.Tanh()),
    "relu last": lambda: mlp(nn.ReLU()),
    "sigmoid last": lambda: mlp(nn.Sigmoid()),
    "nested": lambda: nn.Sequential(mlp(), mlp()),
    "named": lambda: Encapsulated(Named(), input_width=D, output_width=D),
    "raw": lambda: Encapsulated(Raw(), input_width=D, output_width=D),
    "no weights": lambda: Encapsulated(nn.Tanh(), input_width=D, output_width=D),
    "glu": lambda: GLU(input_width=D, output_width=D, generator=torch.Generator()),
    "gated": lambda: Gated(base=mlp(), gate=mlp()),
    "additive": lambda: Additive(base=nn.Identity(), parts=[mlp()]),
    "residual": lambda: ResidualStream(width=D, parts=[mlp(), mlp()]),
    "frozen tail": lambda: mlp(linear().requires_grad_(False)),
}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> nn.Module:
    return NETS[request.param]()


def zero_by_name(part: nn.Module) -> nn.Module:
    """The seed's 'zero': weights whose name has "output" or "proj" in it, and all biases."""
    for name, parameter in part.named_parameters():
        if "bias" in name or (parameter.dim() > 1 and ("output" in name or "proj" in name)):
            nn.init.zeros_(parameter)
    return part


def small_everywhere(part: nn.Module) -> nn.Module:
    """The seed's 'small': every parameter, norms included."""
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.01, generator=torch.Generator().manual_seed(0))
    return part


def test_the_seeds_zero_misses_sequential_names(rows) -> None:
    assert zero_by_name(mlp())(rows(4)).any()
    assert not init_for_grafting(mlp())(rows(4)).any()


def test_zero_is_exactly_0_with_a_gradient(net: nn.Module, rows) -> None:
    part = init_for_grafting(net).train()
    y = part(rows(4))
    assert y.shape == (4, D)
    assert not y.any()
    (rows(4, seed=1) * y).sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in part.parameters())


def test_zero_becomes_something_after_a_step(net: nn.Module, rows) -> None:
    part = init_for_grafting(net).eval()
    (rows(4, seed=1) * part(rows(4))).sum().backward()
    torch.optim.SGD([p for p in part.parameters() if p.requires_grad], lr=0.1).step()
    assert part(rows(4)).any()


def test_identity_is_exactly_x(net: nn.Module, rows) -> None:
    x = rows(2, 3)
    assert torch.equal(init_for_grafting(net, mode="identity")(x), x)


def test_small_is_small_and_keeps_the_norms(rows) -> None:
    g = torch.Generator().manual_seed(0)
    net = mlp()
    before, scale = net.get_parameter("0.weight").detach().clone(), net(rows(4)).norm()
    init_for_grafting(net, mode="small", generator=g)
    assert 0 < net(rows(4)).norm() < 0.1 * scale
    assert net.get_parameter("2.weight").eq(1).all()
    assert torch.equal(net.get_parameter("0.weight"), before)
    assert not small_everywhere(mlp()).get_parameter("2.weight").gt(0.5).any()


def test_small_at_a_last_norm_is_its_scale(rows) -> None:
    net = mlp(nn.LayerNorm(D))
    init_for_grafting(net, mode="small", std=0.02, generator=torch.Generator())
    assert net.get_parameter("4.weight").detach().allclose(torch.tensor(0.02))


def test_only_the_last_layer_changes_and_nothing_else_is_left(rows) -> None:
    net = nn.Sequential(linear(), nn.BatchNorm1d(D), linear().eval())
    part = Encapsulated(net, input_width=D, output_width=D)
    before = {k: v.clone() for k, v in part.state_dict().items()}
    random = torch.get_rng_state()
    assert init_for_grafting(part) is part
    changed = {k for k, v in part.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"part.2.weight", "part.2.bias"}
    assert [m.training for m in net] == [True, True, False]
    assert not any(m._forward_hooks for m in part.modules())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("tail", [nn.ReLU, nn.Sigmoid])
def test_a_tail_that_cannot_be_0_and_learn_gets_a_layer_behind_it(tail, rows) -> None:
    net = mlp(tail())
    before = {k: v.clone() for k, v in net.state_dict().items()}
    part = init_for_grafting(net)
    assert part is not net
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_impossible_wishes_raise() -> None:
    with pytest.raises(ValueError, match=r"unknown mode 'zeros'\. Did you mean 'zero'"):
        init_for_grafting(mlp(), mode="zeros")
    with pytest.raises(ValueError, match="draws from a generator"):
        init_for_grafting(mlp(), mode="small")
    with pytest.raises(ValueError, match="an identity gives the width it takes, found 8 and 5"):
        init_for_grafting(linear(D, 5), mode="identity")
    with pytest.raises(ValueError, match="GELU has no weights"):
        init_for_grafting(nn.GELU())
