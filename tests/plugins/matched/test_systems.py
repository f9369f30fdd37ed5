"""The systems of `redhost lab matched`: one size, one recipe, the answers of the host."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from red_lab.matched.apart import Alone, closed_form_router, train_experts
from red_lab.matched.measure import hits, train_all
from red_lab.matched.systems import Dense, Soft, Sparse, descend, matched_width
from redhost_author.training.expert import ExpertRows, train_expert
from redhost_mechanisms import SparseMixture

import redhost
from redhost.core.bus.bus import Readout
from redhost.core.routers.base import as_router

from .conftest import CLASSES, DOMAINS, SHORT, SYSTEMS, WIDTH, composed, made_up, no_progress


@pytest.mark.parametrize(("width", "classes", "own"), [(576, 99, False), (384, 20, True)])
def test_widths_are_solved_to_a_percent_of_reds_parameters(width, classes, own) -> None:
    """At the widths of both backbones, by building the systems."""
    rank = width // 4
    experts = 5 * 2 * width * rank + (classes * (width + 1) if own else 0)
    wanted = experts + 5 * (width + 1)
    one = matched_width(wanted, width=width, classes=classes)
    each = matched_width(wanted, width=width, classes=classes, experts=5)
    shape = {"width": width, "classes": classes, "seed": 0}
    for system in (
        Dense(units=one, **shape),
        Soft(units=each, experts=5, **shape),
        Sparse(units=each, experts=5, k=2, **shape),
    ):
        assert sum(p.numel() for p in system.parameters()) == pytest.approx(wanted, rel=0.01)


def test_multiply_adds_are_those_of_the_parts_that_run(problem) -> None:
    shape = {"width": WIDTH, "classes": CLASSES, "seed": 0}
    head, gate = 7 * (WIDTH + CLASSES), 5 * WIDTH
    assert Dense(units=7, **shape).multiply_adds() == head
    assert Soft(units=7, experts=5, **shape).multiply_adds() == 5 * head + gate
    assert Sparse(units=7, experts=5, k=2, **shape).multiply_adds() == 2 * head + gate
    residuals = 5 * 2 * WIDTH * problem.rank
    assert composed(problem).multiply_adds() == residuals + CLASSES * WIDTH + gate


def test_the_loop_is_the_one_of_train_expert_bit_for_bit() -> None:
    """A dense head is the form `mlp`, so that all systems share one recipe to the last draw."""
    problem, units = made_up("text"), 6
    system = Dense(width=WIDTH, units=units, classes=CLASSES, seed=4)
    descend(system, problem.train, recipe=SHORT, seed=4, tick=lambda: None)
    settings = SHORT.settings(form="mlp", space="labels", rank=units, seed=4)
    host = train_expert(
        ExpertRows(
            h=problem.train.h,
            z=problem.train.z,
            answers=[problem.labels[int(y)] for y in problem.train.target],
        ),
        Readout(),
        labels=problem.labels,
        settings=settings,
    ).expert
    ours, theirs = system.head.state_dict(), host.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_a_sparse_mixture_of_all_heads_is_the_soft_one() -> None:
    """The same gate and heads: p = Σ α_i p_i, from one class and from `redhost_mechanisms`."""
    part = made_up("text").train
    soft = Soft(width=WIDTH, units=4, classes=CLASSES, experts=5, seed=0)
    descend(soft, part, recipe=SHORT, seed=0, tick=lambda: None)
    sparse = Sparse(width=WIDTH, units=4, classes=CLASSES, experts=5, k=5, seed=0)
    with torch.no_grad():
        for ours, theirs in zip(
            sparse.parameters(), (*soft.gate.parameters(), *soft.heads.parameters()), strict=True
        ):
            ours.copy_(theirs)
    sparse.eval()
    torch.testing.assert_close(sparse.log_p(part.h, part.z), soft.log_p(part.h, part.z))
    torch.testing.assert_close(sparse.alpha(part.z), soft.alpha(part.z))
    each = torch.stack([torch.softmax(f(part.z), -1) for f in soft.heads], dim=1)
    mixed = torch.einsum("be,bec->bc", soft.alpha(part.z), each)
    direct = SparseMixture(gate=soft.gate, experts=list(sparse.mixture.experts), k=5).eval()(part.z)
    torch.testing.assert_close(direct, mixed)


def test_a_row_of_the_sparse_mixture_sees_two_heads_and_training_balances_them() -> None:
    part = made_up("text").train
    system = Sparse(width=WIDTH, units=4, classes=CLASSES, experts=5, k=2, seed=0)
    descend(system, part, recipe=SHORT, seed=0, tick=lambda: None)
    alpha = system.alpha(part.z)
    assert ((alpha > 0).sum(-1) == 2).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones(len(part)))
    system.requires_grad_(False)
    plain, again = (system.loss(part.h, part.z, part.target) for _ in range(2))
    system.train()
    noisy = [system.loss(part.h, part.z, part.target) for _ in range(2)]
    assert plain == again and noisy[0] != noisy[1] and min(noisy) > plain


def test_the_composition_is_what_the_bus_of_the_host_answers(problem) -> None:
    red = composed(problem)
    own = problem.classifier is None
    bus = redhost.Bus(
        Readout(classifier=problem.classifier, labels=() if own else problem.labels),
        norm=problem.norm,
        router=as_router(red.router),
        experts=dict(zip(DOMAINS, red.parts(), strict=True)),
    )
    place = [bus.labels.index(y) for y in problem.labels]
    with torch.no_grad():
        p, alpha = bus(problem.test.h)
        torch.testing.assert_close(red.alpha(problem.test.z), alpha)
        ours = red.log_p(problem.test.h, problem.test.z).exp()
    torch.testing.assert_close(ours, p[:, place], atol=1e-6, rtol=1e-4)


def test_experts_are_trained_apart_on_their_own_rows_only(problem) -> None:
    """Other domains' rows may change as they like: no expert moves by a bit."""
    strange = problem.train.h.clone()
    strange[problem.train.owner != 2] += 5
    moved = dataclasses.replace(problem.train, h=strange, z=problem.norm(strange))
    other = dataclasses.replace(problem, train=moved)
    one, two = (
        train_experts(p, recipe=SHORT, seed=0, tick=no_progress)[2].state_dict()
        for p in (problem, other)
    )
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_an_expert_alone_is_measured_by_what_its_training_minimised(problem) -> None:
    red = composed(problem)
    mine = problem.train.of(3)
    alone = Alone(red.parts()[3], classifier=problem.classifier, first=9)
    with torch.no_grad():
        delta = red.parts()[3](mine.z)
        if problem.classifier is None:
            wanted = torch.nn.functional.cross_entropy(delta, mine.target - 9)
        else:
            logits = (mine.h + delta) @ problem.classifier.T
            wanted = torch.nn.functional.cross_entropy(logits, mine.target)
        torch.testing.assert_close(alone.loss(mine.h, mine.z, mine.target), wanted)


def test_the_hosts_router_learns_the_domains_in_closed_form(problem) -> None:
    experts = train_experts(problem, recipe=SHORT, seed=0, tick=no_progress)
    router = closed_form_router(problem, experts)
    with torch.no_grad():
        right = router(problem.test.z).argmax(-1) == problem.test.owner
    assert right.double().mean() > 0.6
    assert not list(router.parameters()) and router.stored() > 6 * WIDTH**2
    confidences = 0 if problem.classifier is None else 5 * CLASSES * WIDTH
    assert router.multiply_adds() == 5 * WIDTH**2 + CLASSES * WIDTH + confidences


def test_all_systems_learn_what_can_be_learnt(problem) -> None:
    recipe = dataclasses.replace(SHORT, epochs=40)
    trained = train_all(problem, recipe=recipe, seed=0, tick=no_progress)
    assert list(trained) == SYSTEMS
    right = {n: float(hits(t.system, problem.train).mean()) for n, t in trained.items()}
    assert min(right.values()) > 6 / CLASSES, right
