"""The seed's eight checklist items, one integration test each."""

from __future__ import annotations

import pytest
import torch
from redhost_mechanisms import (
    assignment_flip_rate,
    dead_experts,
    load_imbalance,
    usage_entropy,
)
from redhost_mechanisms.adaptive_graft import AdaptiveGraft
from redhost_mechanisms.additive import Additive
from redhost_mechanisms.balance import load_balancing_loss
from redhost_mechanisms.blend import Blend
from redhost_mechanisms.encapsulated import Encapsulated
from redhost_mechanisms.gated import Gated
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
from redhost_mechanisms.widths import widths_of
from torch import Tensor, nn

D, E = 16, 4


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(seed: int, *, hidden: int = 32) -> nn.Module:
    g = generator(seed)
    one, two = (seeded_linear(*w, generator=g) for w in ((D, hidden), (hidden, D)))
    return nn.Sequential(one, nn.GELU(), two)


def test_contract(linears, rows) -> None:
    """Interfaces are stated, checked when parts meet, and hold through three levels."""
    inner = Encapsulated(mlp(1), input_width=D, output_width=D)
    middle = ComposableSequence(parts=[inner, *linears(1, D, 5)])
    slot = Slot(input_width=D, output_width=5, part=middle)
    assert widths_of(slot) == widths_of(middle)
    assert slot(rows(2, 3, width=D)).shape == (2, 3, 5)
    with pytest.raises(ValueError, match=r"part 1 \(Linear\) takes width 16, found width 5"):
        ComposableSequence(parts=[slot, *linears(1, D, D)])
    with pytest.raises(ValueError, match="takes width 16, found width 7"):
        slot(rows(2, width=7))


def test_mechanism(linears, rows) -> None:
    """Adding, gating, blending and routing the same two parts: one interface, four answers."""
    one, two = linears(2, D, D)
    (router,), x = linears(1, D, 2), rows(6, width=D)
    ways = [
        Additive(base=one, parts=[two]),
        Gated(base=one, gate=two, strength=1.0),
        Blend(first=one, second=two, alpha=0.3),
        HardRouting(router=router, experts=[one, two]),
    ]
    answers = [way(x) for way in ways]
    assert {widths_of(way) for way in ways} == {widths_of(one)}
    assert all(not torch.allclose(a, b) for i, a in enumerate(answers) for b in answers[i + 1 :])


def test_projection(linears, rows) -> None:
    """A part of width 5 works on a host of width 16 behind two projections."""
    host = nn.Sequential(*linears(2, D, D))
    into, out = (
        AdaptiveGraft(input_width=a, output_width=b, generator=generator())
        for a, b in ((D, 5), (5, D))
    )
    module = GraftedModule(
        host=host,
        part=ComposableSequence(parts=[*linears(1, 5, 5), nn.GELU(), out]),
        input_graft=InputGraft(source="0", width=D, transform=into),
        output_graft=OutputGraft(target="1", width=D, alpha=1.0),
    )
    x = rows(4, width=D)
    assert not torch.allclose(module(x), host(x))
    module(x).sum().backward()
    assert all(p.grad.any() for p in into.parameters())


def test_normalisation(rows) -> None:
    """On a stream of normalised parts, each part's contribution has its size at any scale."""

    def added(part: nn.Module, x: Tensor) -> float:
        return (ResidualStream(width=D, parts=[part])(x) - x).norm().item()

    x = rows(8, width=D)
    part = NormalisedGraft(part=mlp(1))
    assert added(part, 100 * x) == pytest.approx(added(part, x), rel=0.01)
    assert added(mlp(1), 100 * x) > 10 * added(mlp(1), x)


def test_initialisation(rows) -> None:
    """Whatever is grafted with zero init, the host answers as before; then it learns."""
    host, x, goal = mlp(0).requires_grad_(False), rows(16, width=D), rows(16, width=D, seed=1)
    answer = host(x)
    heads = StreamHeads(part=mlp(2), width=D, head_width=D, generator=generator())
    module = ComposableSequence(
        parts=[
            init_for_grafting(mlp(3), mode="identity"),
            grafted_at_0(host),
            heads,
            Additive(base=nn.Identity(), parts=[init_for_grafting(mlp(4))]),
        ]
    )
    assert torch.equal(module(x), answer)
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        (module(x) - goal).square().mean().backward()
        optimizer.step()
    assert (module(x) - goal).square().mean() < 0.7 * (answer - goal).square().mean()


def grafted_at_0(host: nn.Module) -> nn.Module:
    """A host with a graft at α = 0, declared a part."""
    module = GraftedModule(
        host=host,
        part=seeded_linear(32, D, generator=generator(9)),
        input_graft=InputGraft(source="1", width=32),
        output_graft=OutputGraft(target="2", width=D),
    )
    return Encapsulated(module, input_width=D, output_width=D)


def test_balance(rows) -> None:
    """A gate that has collapsed spreads out again under the loss; the numbers say so."""
    experts = [mlp(i) for i in range(E)]
    gate = seeded_linear(D, E, generator=generator(7))
    with torch.no_grad():
        gate.bias[0] += 2.5
    module, x = SparseMixture(gate=gate, experts=experts, k=1), rows(128, width=D)
    before = module.route(x)
    optimizer = torch.optim.Adam(gate.parameters(), lr=2e-2)
    for _ in range(60):
        routing = module.route(x)
        loss = load_balancing_loss(routing.probabilities, routing.indices, coefficient=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = module.route(x)
    one, two = before.dense_weights(), after.dense_weights()
    assert usage_entropy(one) < 0.2
    assert usage_entropy(two) > 0.9
    assert load_imbalance(one) > 1.4
    assert load_imbalance(two) < 0.5
    assert dead_experts(one)
    assert not dead_experts(two)
    assert assignment_flip_rate(before.indices, after.indices) > 0.4


def test_gradient_reaches_every_part(linears, rows) -> None:
    """One loss at the end of a deep composition moves every parameter in it."""
    mixture = SparseMixture(gate=linears(1, D, E)[0], experts=linears(E, D, D), k=2)
    module = ComposableSequence(
        parts=[
            Gated(base=nn.Identity(), gate=mlp(1), strength=0.5),
            ResidualStream(width=D, parts=[NormalisedGraft(part=mlp(2), post_norm=True), mixture]),
            HardRouting(router=linears(1, D, 2, seed=3)[0], experts=linears(2, D, D, seed=4)),
            Blend(first=mlp(5), second=mlp(6), learnable=True),
        ]
    )
    (rows(64, width=D, seed=1) * module(rows(64, width=D))).sum().backward()
    still = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_synthetic_composition() -> None:
    """Two frozen linear maps, and the sign of one input that says which: composition decides.

    y = A x where x_0 > 0, else B x. No single linear map can do it, and no fixed blend of the
    right two can; a router over them learns it, and nothing but the router is trained.
    """
    g = generator(0)
    a, b = (seeded_linear(D, D, generator=g, bias=False).requires_grad_(False) for _ in "ab")
    x = torch.randn(1024, D, generator=g)
    y = torch.where(x[:, :1] > 0, a(x), b(x))
    x_fit, y_fit, x_new, y_new = x[:512], y[:512], x[512:], y[512:]

    def fitted_error(module: nn.Module) -> float:
        """Return the error on new rows after training, in units of the goal's variance."""
        trained = [p for p in module.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(trained, lr=0.05)
        for _ in range(150):
            optimizer.zero_grad()
            (module(x_fit) - y_fit).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            return ((module(x_new) - y_new).square().mean() / y_new.var()).item()

    def router() -> nn.Module:
        return seeded_linear(D, 2, generator=generator(5))

    assert fitted_error(seeded_linear(D, D, generator=generator(5))) > 0.4
    assert fitted_error(Blend(first=a, second=b, learnable=True)) > 0.4
    routed = [HardRouting(router=router(), experts=[a, b]) for _ in "12"]
    first, again = (fitted_error(m) for m in routed)
    assert first < 0.1
    assert first == again  # Same seeds, same bits.
    assert fitted_error(SparseMixture(gate=router(), experts=[a, b], k=2)) < 0.1
