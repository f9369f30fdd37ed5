"""How parts of a RED page are trained: from which rows, with which budget, down which schedule."""

from __future__ import annotations

import copy

import pytest
import redhost_author
import torch
from red_lab.arithmetic import hashed
from red_lab.red.experts import FORMS, NAMES, Budget, normed, train_family, train_monolith
from red_lab.red.gate import (
    Gate,
    GateSettings,
    centroid,
    shaken,
    train_end_to_end,
    train_jointly,
    train_supervised,
)
from red_lab.red.queries import LABELS
from redhost_author.training.expert import ExpertRows, train_expert
from torch import nn

import redhost
from redhost.core.bus.bus import Readout

from .conftest import alike, descend, made_up, rows

WIDTH = 32
BASE = made_up(500, WIDTH)
TRAIN = [*reversed(rows(500)), *rows(60)]
"""Some questions twice, as they are drawn."""
TARGET = {q.text: LABELS.index(q.label) for q in TRAIN}
OWNER = {q.text: NAMES.index(q.domain) for q in TRAIN}
BUDGET = Budget(
    epochs=3, batch=16, learning_rate=3e-3, weight_decay=0.3, off_domain=0.2, rank=12, noise=0.4
)
SETTINGS = GateSettings(hidden=24, epochs=3, batch=32, learning_rate=3e-3, poisson=0.3, seed=7)


def trained_alone(name: str | None, form: str, *, rank: int, seed: int) -> redhost.Expert:
    """An expert of a range, or of all, as anybody would train one with that budget."""
    kind, space = FORMS[form]
    mine = [q for q in TRAIN if name is None or q.domain == name]
    others = {q.text for q in TRAIN if q.domain != name} if name else set()
    sample = [BASE.place[t] for t in sorted(others, key=hashed)[:256]]
    h = BASE.h[BASE.rows(mine)]
    return train_expert(
        ExpertRows(h=h, z=normed(h), answers=[q.label for q in mine]),
        Readout(classifier=BASE.classifier, labels=LABELS),
        labels=LABELS if space == "labels" else sorted({q.label for q in mine}, key=int),
        settings=redhost_author.ExpertSettings(
            form=kind,
            space=space,
            rank=rank,
            epochs=BUDGET.epochs,
            batch=BUDGET.batch,
            learning_rate=BUDGET.learning_rate,
            weight_decay=BUDGET.weight_decay,
            dropout=0.0,
            noise=BUDGET.noise,
            off_domain=0.0 if space == "labels" else BUDGET.off_domain,
            seed=seed,
        ),
        background=normed(BASE.h[torch.tensor(sample)]) if sample and space != "labels" else None,
    ).expert


@pytest.mark.parametrize("form", FORMS)
def test_experts_are_trained_alone_on_their_ranges_with_one_budget(form) -> None:
    family = train_family(BASE, TRAIN, form=form, budget=BUDGET, seed=5)
    rank = round((2 * WIDTH * 12 - 99) / (WIDTH + 99 + 1)) if form == "mlp" else 12
    assert family.form == form and len(family.experts) == len(NAMES)
    for name, expert in zip(NAMES, family.experts, strict=True):
        wanted = trained_alone(name, form, rank=rank, seed=5)
        assert alike(expert, wanted) and getattr(expert, "labels", None) == getattr(
            wanted, "labels", None
        )
    assert family.parameters == sum(p.numel() for e in family.experts for p in e.parameters())
    assert 0 < family.seconds < 60


def test_the_monolith_has_all_ranks_and_all_rows() -> None:
    whole = train_monolith(BASE, TRAIN, budget=BUDGET, seed=5)
    (expert,) = whole.experts
    assert whole.form == "residual" and 0 < whole.seconds < 60
    assert alike(expert, trained_alone(None, "residual", rank=60, seed=5))


def test_a_rank_is_a_quarter_of_the_width_where_none_is_given() -> None:
    budget = Budget(epochs=1)
    (one, *_) = train_family(BASE, TRAIN, form="residual", budget=budget, seed=0).experts
    assert [tuple(p.shape) for p in one.parameters()] == [(8, WIDTH), (WIDTH, 8)]


def test_features_are_layer_normed_without_affine() -> None:
    h = 1e-2 * BASE.h
    spread = h.var(-1, unbiased=False, keepdim=True)
    wanted = (h - h.mean(-1, keepdim=True)) / (spread + 1e-5).sqrt()
    torch.testing.assert_close(normed(h), wanted)


def test_the_nearest_centroid_is_of_distinct_training_questions() -> None:
    """The 60 questions that come twice count once."""
    z, place = normed(BASE.h), torch.arange(500)
    means = torch.stack([z[place % 5 == k].mean(0) for k in range(5)])
    nearest = ((z[:, None] - means) ** 2).sum(-1).argmin(-1)
    assert torch.equal(centroid(BASE, TRAIN, BASE.h).argmax(-1), nearest)
    assert torch.equal(centroid(BASE, TRAIN, BASE.h).sum(-1), torch.ones(500))


def started() -> Gate:
    """The router before it is trained: its weights are of the seed alone."""
    torch.manual_seed(SETTINGS.seed)
    gate = Gate(width=WIDTH, settings=SETTINGS)
    torch.manual_seed(SETTINGS.seed)
    first, second = nn.Linear(WIDTH, 24), nn.Linear(24, 5)
    assert alike(gate, nn.ModuleList([first, second]))
    z = normed(BASE.h)
    torch.testing.assert_close(gate(z), second(nn.functional.gelu(first(z))))
    return gate


def trained(module: nn.Module, loss) -> None:
    """Train as every router is: over the distinct questions, in the order they came in."""
    generator = torch.Generator().manual_seed(SETTINGS.seed)
    place = torch.tensor([BASE.place[t] for t in TARGET])
    z = normed(BASE.h)[place]
    target, owner = torch.tensor([*TARGET.values()]), torch.tensor([*OWNER.values()])

    def of_batch(index: torch.Tensor) -> torch.Tensor:
        noisy = shaken(z[index], SETTINGS.poisson, generator)
        return loss(noisy, BASE.h[place[index]], target[index], owner[index])

    descend(
        module.parameters(),
        of_batch,
        len(place),
        epochs=SETTINGS.epochs,
        batch=SETTINGS.batch,
        learning_rate=SETTINGS.learning_rate,
        weight_decay=0.01,
        generator=generator,
    )


def test_a_router_is_trained_on_ranges() -> None:
    gate = started()
    trained(gate, lambda z, h, target, owner: nn.functional.cross_entropy(gate(z), owner))
    found = train_supervised(BASE, TRAIN, settings=SETTINGS)
    assert alike(found, gate) and not alike(found, started())
    assert not any(p.requires_grad for p in found.parameters())
    torch.testing.assert_close(found.weights(BASE.h), torch.softmax(gate(normed(BASE.h)), -1))


def test_a_router_is_trained_through_answers() -> None:
    family = train_family(BASE, TRAIN, form="residual", budget=BUDGET, seed=5)
    gate = started()

    def loss(z, h, target, owner) -> torch.Tensor:
        outputs = family.outputs(h, BASE.classifier)
        each = outputs.each().clone()
        p = (torch.softmax(gate(z), -1)[:, :, None] * each).sum(1)
        return nn.functional.nll_loss(p.log(), target)

    trained(gate, loss)
    through = type(family.outputs(BASE.h, BASE.classifier)).mixture
    assert alike(train_end_to_end(BASE, TRAIN, family, through, settings=SETTINGS), gate)


def test_an_answer_that_no_expert_gives_costs_a_finite_price() -> None:
    """−log is cut off at 1e-9, so that one row does not undo a batch."""
    family = train_family(BASE, TRAIN, form="linear", budget=BUDGET, seed=5)

    def nobody(outputs, alpha) -> torch.Tensor:
        return 0 * outputs.mixture(alpha)

    gate = train_end_to_end(BASE, TRAIN, family, nobody, settings=SETTINGS)
    assert all(bool(p.isfinite().all()) for p in gate.parameters())


def test_router_and_experts_go_on_together() -> None:
    family = train_family(BASE, TRAIN, form="residual", budget=BUDGET, seed=5)
    gate = train_supervised(BASE, TRAIN, settings=SETTINGS)
    own = copy.deepcopy(gate).requires_grad_(True)
    copies = [copy.deepcopy(e).requires_grad_(True) for e in family.experts]

    def loss(z, h, target, owner) -> torch.Tensor:
        alpha = torch.softmax(own(z), -1)
        moved = h + sum(alpha[:, k : k + 1] * e(z) for k, e in enumerate(copies))
        return nn.functional.cross_entropy(moved @ BASE.classifier.T, target)

    trained(nn.ModuleList([own, *copies]), loss)
    moved, joint = train_jointly(BASE, TRAIN, family, gate, settings=SETTINGS)
    assert alike(joint, own) and not alike(joint, gate)
    assert all(alike(a, b) for a, b in zip(moved.experts, copies, strict=True))
    assert (moved.form, moved.parameters, moved.seconds) == (
        "residual",
        family.parameters,
        family.seconds,
    )
    assert not any(p.requires_grad for m in (joint, *moved.experts) for p in m.parameters())
