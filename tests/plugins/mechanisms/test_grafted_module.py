"""Grafted module: the part's answer reaches the host's output, and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from redhost_mechanisms.grafted_module import GraftedModule
from redhost_mechanisms.input_graft import InputGraft
from redhost_mechanisms.output_graft import OutputGraft
from torch import Tensor, nn

D = 8


class Host(nn.Module):
    """Three layers; `spare` never runs, `both` gives no tensor."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.one, self.two, self.head, self.spare = layers
        self.both = nn.LSTM(D, D)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.both(x)
        return scale * self.head(self.two(self.one(x).relu()).relu())


def written_nowhere(host: nn.Module, part: nn.Module, x: Tensor) -> Tensor:
    """The seed's: the result is returned to the caller, and the host goes on without it."""
    activations: dict[str, Tensor] = {}
    hook = host.two.register_forward_hook(lambda _m, _a, y: activations.update(two=y))
    y = host(x)
    hook.remove()
    _merged = activations["two"] + part(activations["two"])
    return y


@pytest.fixture
def host(linears) -> Host:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Host([*linears(2), *linears(1, D, 3), *linears(1)])


def grafted(
    host: nn.Module, part: nn.Module, *, source: str = "one", target: str = "two", **options
) -> GraftedModule:
    return GraftedModule(
        host=host,
        part=part,
        input_graft=InputGraft(source=source, width=D),
        output_graft=OutputGraft(target=target, width=D, **options),
    )


def hooks_left(host: nn.Module) -> int:
    return sum(len(m._forward_hooks) for m in host.modules())


def test_the_result_is_written_back(host, linears, rows) -> None:
    (part,), x = linears(1, seed=5), rows(4)
    assert torch.equal(written_nowhere(host, part, x), host(x))
    one = host.one(x)
    expected = host.head((host.two(one.relu()) + 0.5 * part(one)).relu())
    ours = grafted(host, part, alpha=0.5)(x)
    torch.testing.assert_close(ours, expected)
    assert not torch.allclose(ours, host(x))


@pytest.mark.parametrize("mode", ["add", "replace", "gate"])
def test_the_host_is_untouched_at_alpha_0(host, linears, rows, mode: str) -> None:
    x, state = rows(4), {k: v.clone() for k, v in host.state_dict().items()}
    answer = host(x)
    module = grafted(host, *linears(1), mode=mode)
    assert torch.equal(module(x), answer)
    assert torch.equal(host(x), answer)
    assert hooks_left(host) == 0
    assert all(torch.equal(v, state[k]) for k, v in host.state_dict().items())


def test_concat_on_the_last_layer(host, linears, rows) -> None:
    module = GraftedModule(
        host=host,
        part=linears(1, D, 5)[0],
        input_graft=InputGraft(source="one", width=D),
        output_graft=OutputGraft(target="head", width=3, part_width=5, mode="concat"),
    )
    y = module(rows(4))
    assert torch.equal(y, torch.cat([host(rows(4)), torch.zeros(4, 5)], -1))


def test_reading_and_writing_one_layer(host, linears, rows) -> None:
    (part,), x = linears(1), rows(4)
    two = host.two(host.one(x).relu())
    y = grafted(host, part, source="two", alpha=1.0)(x)
    torch.testing.assert_close(y, host.head((two + part(two)).relu()))


def test_the_part_and_alpha_learn(host, linears, rows) -> None:
    module = grafted(host.requires_grad_(False), *linears(1), alpha=0.1)
    module(rows(4)).square().sum().backward()
    assert {n for n, p in module.named_parameters() if p.grad is not None and p.grad.any()} == {
        "part.weight",
        "part.bias",
        "output_graft.alpha",
    }


def test_arguments_are_the_hosts(host, linears, rows) -> None:
    x = rows(4)
    assert torch.equal(grafted(host, *linears(1))(x, scale=2.0), host(x, scale=2.0))


def test_attached_lasts_for_the_block(host, linears, rows) -> None:
    module, x = grafted(host, *linears(1), alpha=1.0), rows(4)
    with module.attached():
        inside = host(x)
    assert torch.equal(inside, module(x))
    assert not torch.allclose(inside, host(x))


def test_no_hook_survives_an_error(host, linears, rows) -> None:
    with pytest.raises(RuntimeError, match=r"size|shape|input"):
        grafted(host, *linears(1))(rows(4, width=5))
    assert hooks_left(host) == 0


@pytest.mark.parametrize(("source", "target"), [("oen", "two"), ("one", "tow")])
def test_an_unknown_layer_names_the_known_ones(host, linears, source: str, target: str) -> None:
    with pytest.raises(
        ValueError, match=r"Did you mean '(one|two)'\? Known: one, two, head, spare"
    ):
        grafted(host, *linears(1), source=source, target=target)


def test_layers_that_cannot_be_grafted_say_why(host, linears, rows) -> None:
    (part,), x = linears(1), rows(4)
    with pytest.raises(ValueError, match="layer 'two' has not run when 'one' does"):
        grafted(host, part, source="two", target="one")(x)
    with pytest.raises(ValueError, match="never ran layer 'spare'"):
        grafted(host, part, target="spare")(x)
    with pytest.raises(TypeError, match="layer 'both' gives tuple, a graft takes a tensor"):
        grafted(host, part, source="both")(x)
    assert hooks_left(host) == 0


def test_widths_meet_at_both_ends(host, linears) -> None:
    with pytest.raises(ValueError, match="from width 8 to 8, found Linear from width 8 to 5"):
        grafted(host, *linears(1, D, 5))
