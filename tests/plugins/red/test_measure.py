"""What rows of a RED page are made of: whose weights, trained through which combination."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from red_lab.red.experts import (
    FORMS,
    NAMES,
    Budget,
    Family,
    Outputs,
    normed,
    train_family,
    train_monolith,
)
from red_lab.red.gate import (
    Gate,
    GateSettings,
    centroid,
    oracle,
    train_end_to_end,
    train_jointly,
    train_supervised,
)
from red_lab.red.judge import flipped, hits, judge, worst_case
from red_lab.red.measure import SHARES, RedSetting, measure
from red_lab.red.queries import Data

from .conftest import made_up, rows

BASE, ROWS = made_up(200, 16), tuple(rows(200))
TEST = tuple(q for q in reversed(ROWS) if q.domain != "range5")
"""In another order than what was learnt, and without one range."""
H, C = BASE.h[BASE.rows(TEST)], BASE.classifier
SEED = 3
BUDGET = Budget(epochs=20, learning_rate=3e-2, rank=32)
LONG = GateSettings(epochs=30, learning_rate=3e-3)
SHORT = GateSettings(epochs=4, learning_rate=3e-3, seed=2)
"""Routers that learnt a little: two of them still differ."""
RED, MIXTURE = Outputs.residual, Outputs.mixture
SYSTEMS = {
    "oracle, linear": ("linear", MIXTURE, "own"),
    "uniform probabilities, linear": ("linear", MIXTURE, "even"),
    "MoE, linear": ("linear", MIXTURE, "routed"),
    "averaged logits, linear": ("linear", RED, "even"),
    "oracle, mlp": ("mlp", MIXTURE, "own"),
    "uniform probabilities, mlp": ("mlp", MIXTURE, "even"),
    "MoE, mlp": ("mlp", MIXTURE, "routed"),
    "averaged logits, mlp": ("mlp", RED, "even"),
    "oracle, residual": ("residual", MIXTURE, "own"),
    "uniform probabilities, residual": ("residual", MIXTURE, "even"),
    "MoE, residual": ("residual", MIXTURE, "routed"),
    "averaged logits, residual": ("residual", RED, "even"),
    "uniform residuals": ("residual", RED, "even"),
    "RED, hard top-1": ("residual", RED, "hard"),
    "RED, nearest centroid": ("residual", RED, "near"),
    "RED": ("residual", RED, "routed"),
    "RED, logit-space experts": ("logits", RED, "routed"),
    "RED, off-domain penalty": ("quiet", RED, "routed"),
    "MoE, off-domain penalty": ("quiet", MIXTURE, "routed"),
    "sum without a router": ("residual", RED, "all"),
    "sum without a router, off-domain penalty": ("quiet", RED, "all"),
}
"""What each row of the table is: whose experts, how combined, by which weights."""
CURVES = ("RED", "MoE, residual", "MoE, linear", "RED, off-domain penalty")
CURVES += ("MoE, off-domain penalty",)
END_TO_END = {
    "RED, router end to end": ("residual", RED),
    "MoE, residual, router end to end": ("residual", MIXTURE),
    "MoE, linear, router end to end": ("linear", MIXTURE),
}


@pytest.fixture(scope="module")
def families() -> dict[str, Family]:
    penalised = replace(BUDGET, off_domain=0.1)
    return {
        **{f: train_family(BASE, ROWS, form=f, budget=BUDGET, seed=SEED) for f in FORMS},
        "quiet": train_family(BASE, ROWS, form="residual", budget=penalised, seed=SEED),
        "monolith": train_monolith(BASE, ROWS, budget=BUDGET, seed=SEED),
    }


@pytest.fixture(scope="module")
def outputs(families) -> dict[str, Outputs]:
    return {name: family.outputs(H, C) for name, family in families.items()}


@pytest.fixture(scope="module")
def gate() -> Gate:
    return train_supervised(BASE, ROWS, settings=SHORT)


@pytest.fixture(scope="module")
def weights(gate) -> dict[str, torch.Tensor]:
    routed = torch.softmax(gate(normed(H)), -1)
    return {
        "own": oracle(TEST),
        "even": torch.full((len(TEST), 5), 0.2),
        "all": torch.ones(len(TEST), 5),
        "routed": routed,
        "hard": (routed == routed.max(-1, keepdim=True).values).float(),
        "near": centroid(BASE, ROWS, H),
    }


@pytest.fixture  # anew for each test, so that `make mutate` asks each of them
def measured() -> dict:
    setting = RedSetting(budget=BUDGET, gate=SHORT, seed=SEED)
    data = Data(train=ROWS, valid=(), test=TEST)
    return measure(BASE, data, setting=setting, progress=lambda _: None)


def test_every_row_is_the_combination_that_it_is_called(measured, outputs, weights) -> None:
    for name, (form, combine, by) in SYSTEMS.items():
        p = combine(outputs[form], weights[by])
        assert measured["hits"][name] == hits(p, TEST).tolist(), name
        assert measured["systems"][name] == judge(p, TEST), name


def test_rows_differ_on_these_questions(measured) -> None:
    answered = Counter(map(tuple, measured["hits"].values()))
    assert len(answered) == len(measured["hits"]) - 1
    assert measured["hits"]["averaged logits, residual"] == measured["hits"]["uniform residuals"]


def test_rows_without_a_router(measured, outputs) -> None:
    alone = hits(torch.softmax(H @ C.T, -1), TEST)
    assert measured["hits"]["global head"] == alone.tolist()
    whole = hits(outputs["monolith"].each()[:, 0], TEST)
    assert measured["hits"]["monolith"] == whole.tolist()
    single = [hits(p, TEST) for p in outputs["residual"].each().unbind(1)]
    best = measured["hits"]["best single residual expert"]
    assert best == max(single, key=lambda right: float(right.sum())).tolist()


def test_the_joint_row_goes_on_from_the_router_and_the_experts(measured, families, gate) -> None:
    family, joint = train_jointly(
        BASE, ROWS, families["residual"], gate, settings=replace(SHORT, epochs=8)
    )
    p = family.outputs(H, C).residual(joint.weights(H))
    assert measured["hits"]["RED, joint integration"] == hits(p, TEST).tolist()


def test_curves_are_what_is_left_under_wrong_routes(measured, outputs, weights) -> None:
    wanted: dict[str, dict] = {"flipped": {}, "worst": {}}
    for name in CURVES:
        form, combine, by = SYSTEMS[name]
        own, alpha = outputs[form], weights[by]
        wanted["flipped"][name] = [
            float(hits(combine(own, flipped(alpha, q, seed=SEED)), TEST).mean()) for q in SHARES
        ]
        wanted["worst"][name] = [
            worst_case(own, alpha, q, TEST, residual=combine is RED) for q in SHARES
        ]
    assert measured["curves"] == wanted


def test_figures_of_router_and_residuals(measured, families, weights) -> None:
    alpha, owner = weights["routed"], weights["own"].argmax(-1)
    assert measured["router_accuracy"] == float((alpha.argmax(-1) == owner).float().mean())
    deltas = torch.stack([e(normed(H)) for e in families["residual"].experts], 1)
    sizes = (deltas.norm(dim=-1) / H.norm(dim=-1, keepdim=True)).mean(0)
    assert measured["relative_size"] == pytest.approx(dict(zip(NAMES, sizes.tolist(), strict=True)))
    moved = H + (alpha[:, :, None] * deltas).sum(1)
    turned = (moved * H).sum(-1) / (moved.norm(dim=-1) * H.norm(dim=-1))
    for k, name in enumerate(NAMES[:4]):
        here = owner == k
        assert measured["cosine"][name] == pytest.approx(float(turned[here].mean()))
        assert measured["confusion"][k] == pytest.approx(alpha[here].mean(0).tolist())
    assert measured["cosine"]["range5"] is None and measured["confusion"][4] == [0.0] * 5


def test_what_a_system_costs_is_counted(measured, families, gate) -> None:
    sizes = {
        n: sum(p.numel() for e in f.experts for p in e.parameters()) for n, f in families.items()
    }
    assert measured["parameters"] == {**sizes, "router": sum(p.numel() for p in gate.parameters())}
    assert measured["flops"] == {n: 2 * size + 2 * C.numel() for n, size in sizes.items()}
    assert measured["seconds"].keys() == {*families, "routers"}
    assert all(0 < s < 60 for s in measured["seconds"].values())


@pytest.mark.parametrize("name", END_TO_END)
def test_a_router_learns_through_the_combination_that_it_answers_in(
    measured, families, outputs, name
) -> None:
    form, combine = END_TO_END[name]

    def answered(through) -> list[float]:
        gate = train_end_to_end(BASE, ROWS, families[form], through, settings=SHORT)
        return hits(combine(outputs[form], gate.weights(H)), TEST).tolist()

    other = MIXTURE if combine is RED else RED
    assert measured["hits"][name] == answered(combine) != answered(other)


def test_a_router_learns_what_its_combination_rewards(families) -> None:
    """Here an answer is as probable as the fourth expert's weight is large."""

    def fourth(outputs: Outputs, alpha: torch.Tensor) -> torch.Tensor:
        return alpha[:, 3:4].expand_as(outputs.base)

    gate = train_end_to_end(BASE, ROWS, families["residual"], fourth, settings=LONG)
    assert float(gate.weights(BASE.h)[:, 3].min()) > 0.9


def test_joint_integration_trains_the_router_and_every_expert_and_changes_neither_given(
    families, gate
) -> None:
    family = families["residual"]
    before = [p.clone() for module in (gate, *family.experts) for p in module.parameters()]
    moved, joint = train_jointly(BASE, ROWS, family, gate, settings=SHORT)
    after = [p for module in (joint, *moved.experts) for p in module.parameters()]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    given = [p for module in (gate, *family.experts) for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))
