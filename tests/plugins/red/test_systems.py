"""The systems of `redhost lab red` add up, and learn what can be learnt."""

from __future__ import annotations

import pytest
import torch
from red_lab.red.experts import Budget, Outputs, train_family, train_monolith
from red_lab.red.gate import GateSettings, centroid, oracle, shaken, train_supervised
from red_lab.red.judge import hits

from .conftest import made_up, rows


def test_every_system_is_a_function_of_what_experts_say_and_alpha() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = Outputs(
        base=torch.randn(7, 99, generator=generator), add=torch.randn(7, 5, 99, generator=generator)
    )
    for k in range(5):
        one = torch.nn.functional.one_hot(torch.full((7,), k), 5).float()
        torch.testing.assert_close(outputs.residual(one), outputs.each()[:, k])
        torch.testing.assert_close(outputs.mixture(one), outputs.each()[:, k])
    nothing = torch.zeros(7, 5)
    assert torch.equal(outputs.residual(nothing), torch.softmax(outputs.base, -1))


def test_residual_experts_learn_their_range_and_the_monolith_is_as_large() -> None:
    base, train = made_up(200, 64), rows(200)
    budget = Budget(epochs=60, learning_rate=1e-2)
    family = train_family(base, train, form="residual", budget=budget, seed=0)
    whole = train_monolith(base, train, budget=budget, seed=0)
    assert whole.parameters == family.parameters
    outputs = family.outputs(base.h, base.classifier)
    assert hits(torch.softmax(outputs.base, -1), train).mean() < 0.1
    assert hits(outputs.residual(oracle(train)), train).mean() > 0.9
    assert hits(outputs.residual(torch.full((200, 5), 0.2)), train).mean() < 0.9
    alpha = torch.rand(200, 5)
    moved = torch.softmax(family.moved(base.h, alpha) @ base.classifier.T, -1)
    torch.testing.assert_close(moved, outputs.residual(alpha))
    heads = train_family(base, train, form="linear", budget=Budget(epochs=1), seed=0)
    assert heads.relative_size(base.h) == [] and len(family.relative_size(base.h)) == 5
    assert not heads.outputs(base.h, base.classifier).base.any()


def test_the_penalty_keeps_experts_small_on_the_others_questions() -> None:
    base, train = made_up(200, 64), rows(200)
    sizes = []
    for off_domain in (0.0, 0.1):
        budget = Budget(epochs=40, learning_rate=1e-2, off_domain=off_domain)
        family = train_family(base, train, form="residual", budget=budget, seed=0)
        outputs = family.outputs(base.h, base.classifier)
        others = 1 - oracle(train)
        sizes.append(float((outputs.add.norm(dim=-1) * others).sum() / others.sum()))
    assert sizes[1] < 0.5 * sizes[0]


def test_mlp_heads_have_as_many_parameters_as_residual_experts() -> None:
    """At the width of SmolLM2, by building them: within a percent."""
    base = made_up(99, 576)
    sizes = [
        train_family(base, rows(99), form=form, budget=Budget(epochs=1), seed=0).parameters
        for form in ("mlp", "residual")
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_the_router_learns_what_centroids_cannot() -> None:
    base, train = made_up(200, 64), rows(200)
    gate = train_supervised(base, train, settings=GateSettings(epochs=40, learning_rate=1e-2))
    wanted = oracle(train).argmax(-1)
    learnt = (gate.weights(base.h).argmax(-1) == wanted).float().mean()
    nearest = (centroid(base, train, base.h).argmax(-1) == wanted).float().mean()
    assert learnt > 0.95 > nearest


def test_noise_of_the_router_grows_with_activity() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.tensor([0.0, 1.0, -4.0]).expand(20_000, 3)
    spread = (shaken(z, 0.5, generator) - z).std(0)
    assert spread[0] == 0
    torch.testing.assert_close(spread[1:] ** 2, torch.tensor([0.5, 2.0]), rtol=0.05, atol=0)
    assert torch.equal(shaken(z, 0.0, generator), z)
