"""The laws that every mechanism keeps, one case for each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redhost_mechanisms as mechanisms
import torch
from redhost_mechanisms.adaptive_graft import AdaptiveGraft
from redhost_mechanisms.additive import Additive
from redhost_mechanisms.balance import load_balancing_loss
from redhost_mechanisms.blend import Blend, MultiBlend
from redhost_mechanisms.competitive import WinnerTakesAll
from redhost_mechanisms.cooperative import AttentiveEnsemble
from redhost_mechanisms.encapsulated import Encapsulated
from redhost_mechanisms.ensemble import IndependentEnsemble
from redhost_mechanisms.gated import Gated
from redhost_mechanisms.glu import GLU
from redhost_mechanisms.grafted_module import GraftedModule
from redhost_mechanisms.hard_routing import HardRouting
from redhost_mechanisms.initialise import init_for_grafting
from redhost_mechanisms.input_graft import InputGraft
from redhost_mechanisms.linear import seeded_linear
from redhost_mechanisms.mixture import SparseMixture
from redhost_mechanisms.normalised_graft import NormalisedGraft
from redhost_mechanisms.output_graft import OutputGraft
from redhost_mechanisms.residual_stream import ResidualStream
from redhost_mechanisms.sequence import ComposableSequence
from redhost_mechanisms.slot import Slot
from redhost_mechanisms.stream_heads import StreamHeads
from redhost_mechanisms.top_k import noisy_top_k
from torch import Tensor, nn

D, E, WRONG = 16, 4, 11


class Ingredients:
    """Where a case takes its layers from."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def linear(self, taken: int = D, given: int = D) -> nn.Linear:
        return seeded_linear(taken, given, generator=self.generator)

    def linears(self, count: int = E) -> list[nn.Linear]:
        return [self.linear() for _ in range(count)]

    def mlp(self) -> nn.Module:
        return nn.Sequential(self.linear(), nn.GELU(), nn.Dropout(0.5), self.linear())


def call(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mechanism with parts, and how x is given to it."""

    build: Callable[[Ingredients], nn.Module]
    call: Callable[[nn.Module, Tensor], Tensor] = call


class NoisyTopK(nn.Module):
    """The function as a module, so that it is held to the same laws."""

    def __init__(self, p: Ingredients) -> None:
        super().__init__()
        self.gate, self.generator = p.linear(D, E), p.generator

    def forward(self, x: Tensor) -> Tensor:
        mechanisms.check_width(x, D, who="NoisyTopK")
        return (
            noisy_top_k(
                self.gate(x), k=2, noise=1.0, generator=self.generator, training=self.training
            )
            .dense_weights()
            .to(x.dtype)
        )


class Balanced(nn.Module):
    """A mixture and its balancing loss in one pass, as in a training loop."""

    def __init__(self, p: Ingredients) -> None:
        super().__init__()
        self.mixture = SparseMixture(gate=p.linear(D, E), experts=p.linears(), k=2)

    def forward(self, x: Tensor) -> Tensor:
        routing = self.mixture.route(x)
        loss = load_balancing_loss(routing.probabilities, routing.indices)
        return self.mixture.combine(x, routing) + 0 * loss.to(x.dtype)


def grafted(p: Ingredients) -> nn.Module:
    return GraftedModule(
        host=nn.Sequential(p.linear(), nn.GELU(), p.linear()),
        part=p.mlp(),
        input_graft=InputGraft(source="0", width=D),
        output_graft=OutputGraft(target="2", width=D, alpha=0.5),
    )


def stream_heads(p: Ingredients) -> nn.Module:
    part = p.linear(6, 9)
    return StreamHeads(
        part=part, width=D, head_width=3, read_heads=2, write_heads=3, generator=p.generator
    )


CASES: dict[str, Case] = {
    "encapsulated": Case(build=lambda p: Encapsulated(p.mlp(), input_width=D, output_width=D)),
    "sequence": Case(build=lambda p: ComposableSequence(parts=[p.mlp(), nn.GELU(), p.linear()])),
    "slot, empty": Case(build=lambda p: Slot(input_width=D, output_width=5)),
    "slot, filled": Case(build=lambda p: Slot(input_width=D, output_width=D, part=p.mlp())),
    "additive": Case(build=lambda p: Additive(base=nn.Identity(), parts=p.linears())),
    "gated": Case(build=lambda p: Gated(base=p.linear(), gate=p.linear(), strength=0.5)),
    "glu": Case(build=lambda p: GLU(input_width=D, output_width=5, generator=p.generator)),
    "blend": Case(
        build=lambda p: Blend(first=p.linear(), second=nn.Identity(), alpha=0.3, learnable=True)
    ),
    "multi-blend": Case(build=lambda p: MultiBlend(parts=p.linears())),
    "hard routing": Case(build=lambda p: HardRouting(router=p.linear(D, E), experts=p.linears())),
    "mixture, k = 1": Case(
        build=lambda p: SparseMixture(gate=p.linear(D, E), experts=p.linears(), k=1)
    ),
    "mixture, noisy": Case(
        build=lambda p: SparseMixture(
            gate=p.linear(D, E), experts=p.linears(), k=2, noise=0.5, generator=p.generator
        )
    ),
    "noisy top-k": Case(build=NoisyTopK),
    "balanced": Case(build=Balanced),
    "input graft": Case(
        build=lambda p: InputGraft(source="a", width=D, transform=p.linear(D, 5)),
        call=lambda m, x: m({"a": x}),
    ),
    "output graft, add": Case(
        build=lambda p: OutputGraft(target="a", width=D, alpha=0.5),
        call=lambda m, x: m(x, x.sin()),
    ),
    "output graft, replace": Case(
        build=lambda p: OutputGraft(target="a", width=D, alpha=0.5, mode="replace"),
        call=lambda m, x: m(x, x.sin()),
    ),
    "output graft, concat": Case(
        build=lambda p: OutputGraft(target="a", width=D, alpha=0.5, mode="concat"),
        call=lambda m, x: m(x, x.sin()),
    ),
    "output graft, gate": Case(
        build=lambda p: OutputGraft(target="a", width=D, alpha=0.5, mode="gate"),
        call=lambda m, x: m(x, x.sin()),
    ),
    "grafted module": Case(build=grafted),
    "residual stream": Case(build=lambda p: ResidualStream(width=D, parts=p.linears())),
    "stream heads": Case(build=stream_heads),
    "adaptive graft": Case(
        build=lambda p: AdaptiveGraft(
            input_width=D, output_width=5, mode="mlp", generator=p.generator
        )
    ),
    "normalised graft": Case(build=lambda p: NormalisedGraft(part=p.linear(D, 5), post_norm=True)),
    "initialised": Case(build=lambda p: init_for_grafting(p.mlp(), mode="identity")),
    "ensemble": Case(build=lambda p: IndependentEnsemble(parts=p.linears(), combiner="concat")),
    "competitive": Case(build=lambda p: WinnerTakesAll(selector=p.linear(D, E), parts=p.linears())),
    "cooperative": Case(
        build=lambda p: AttentiveEnsemble(parts=p.linears(), hidden_width=6, generator=p.generator)
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def module(case: Case) -> nn.Module:
    return case.build(Ingredients())


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


LEADING = [(), (3,), (2, 3), (0,)]


@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_any_leading_dimensions_and_both_dtypes(case, module, rows, leading, dtype) -> None:
    module = module.to(dtype).eval()
    x = rows(*leading, width=D).to(dtype)
    y = case.call(module, x)
    assert y.shape[:-1] == leading
    assert y.dtype == dtype
    assert y.isfinite().all()


def test_a_batch_is_its_rows(case, module, rows) -> None:
    module, x = module.eval(), rows(2, 3, width=D)
    one_by_one = torch.stack([case.call(module, row) for row in x.reshape(6, D)])
    torch.testing.assert_close(case.call(module, x), one_by_one.reshape(2, 3, -1))


def snapshot(module: nn.Module) -> Iterator[tuple[str, str, object]]:
    """Yield every attribute of every submodule, with a copy of each dictionary."""
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            yield name, key, dict(value) if isinstance(value, dict) else value


def same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(one[k] is other[k] for k in one)
    return one is other or one == other


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_forward_stores_no_state(case, module, rows, training: bool) -> None:
    module.train(training)
    before, tensors = [*snapshot(module)], {k: v.clone() for k, v in module.state_dict().items()}
    case.call(module, rows(3, width=D).requires_grad_())
    after = [*snapshot(module)]
    assert [a[:2] for a in after] == [b[:2] for b in before]
    assert all(same(b[2], a[2]) for b, a in zip(before, after, strict=True))
    assert all(torch.equal(module.state_dict()[k], v) for k, v in tensors.items())


def test_eval_is_deterministic(case, module, rows) -> None:
    module, x = module.eval(), rows(3, width=D)
    assert torch.equal(case.call(module, x), case.call(module, x))


def test_no_global_random_state(case, rows) -> None:
    before = torch.get_rng_state()
    module = case.build(Ingredients())
    for dropout in (m for m in module.modules() if isinstance(m, nn.Dropout)):
        dropout.p = 0.0  # Torch's own dropout knows no generator.
    first = case.call(module.train(), rows(3, width=D))
    assert torch.equal(torch.get_rng_state(), before)
    again = case.build(Ingredients())
    for dropout in (m for m in again.modules() if isinstance(m, nn.Dropout)):
        dropout.p = 0.0
    assert torch.equal(case.call(again.train(), rows(3, width=D)), first)


def test_wrong_width_names_both(case, module, rows) -> None:
    with pytest.raises(ValueError) as error:
        case.call(module, rows(3, width=WRONG))
    assert {str(D), str(WRONG)} <= {*re.findall(r"\d+", str(error.value))}


@pytest.mark.parametrize("leading", [(3,), (0,)], ids=str)
def test_gradients_are_finite(case, module, rows, leading, dtype) -> None:
    module = module.to(dtype)
    x = rows(*leading, width=D).to(dtype).requires_grad_()
    y = case.call(module, x)
    if y.requires_grad:  # An empty slot's zeros have none.
        y.square().sum().backward()
        gradients = [x.grad, *(p.grad for p in module.parameters())]
        assert all(g.isfinite().all() for g in gradients if g is not None)


def test_every_mechanism_is_a_case() -> None:
    covered = {type(c.build(Ingredients())).__name__ for c in CASES.values()}
    public = {
        name
        for name in mechanisms.__all__
        if isinstance(kind := getattr(mechanisms, name), type) and issubclass(kind, nn.Module)
    }
    assert public <= covered


def test_everything_public_exists_and_says_what_it_is() -> None:
    assert len({*mechanisms.__all__}) == len(mechanisms.__all__)
    for name in mechanisms.__all__:
        public = getattr(mechanisms, name)
        if not hasattr(public, "__args__"):  # The names of modes are plain aliases.
            assert public.__doc__, name
