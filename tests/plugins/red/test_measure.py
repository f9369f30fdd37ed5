"""What rows of a RED page are made of: whose weights, trained through which combination."""

from __future__ import annotations

import pytest
import torch
from red_lab.red.experts import Budget, Family, Outputs, train_family
from red_lab.red.gate import (
    GateSettings,
    oracle,
    train_end_to_end,
    train_jointly,
    train_supervised,
)
from red_lab.red.judge import hits
from red_lab.red.measure import RedSetting, measure
from red_lab.red.queries import Data

from .conftest import made_up, rows

BASE, ROWS = made_up(200, 16), tuple(rows(200))
BUDGET = Budget(epochs=60, learning_rate=1e-2, rank=32)
LONG = GateSettings(epochs=30, learning_rate=3e-3)
SHORT = GateSettings(epochs=4, learning_rate=3e-3)
"""Routers that learnt a little: two of them still differ."""
END_TO_END = {
    "RED, router end to end": ("residual", Outputs.residual),
    "MoE, residual, router end to end": ("residual", Outputs.mixture),
    "MoE, linear, router end to end": ("linear", Outputs.mixture),
}


@pytest.fixture(scope="module")
def families() -> dict[str, Family]:
    forms = ("linear", "residual")
    return {f: train_family(BASE, ROWS, form=f, budget=BUDGET, seed=0) for f in forms}


@pytest.fixture(scope="module")
def measured() -> dict:
    setting = RedSetting(budget=BUDGET, gate=SHORT, seed=0)
    data = Data(train=ROWS, valid=(), test=ROWS)
    return measure(BASE, data, setting=setting, progress=lambda _: None)


@pytest.mark.parametrize("form", ["linear", "residual"])
def test_the_oracle_is_each_rows_own_expert_whatever_the_router_says(
    measured, families, form
) -> None:
    alone = families[form].outputs(BASE.h, BASE.classifier).each()
    own = alone[torch.arange(len(ROWS)), oracle(ROWS).argmax(-1)]
    assert measured["hits"][f"oracle, {form}"] == hits(own, ROWS).tolist()
    assert measured["hits"][f"oracle, {form}"] != measured["hits"][f"MoE, {form}"]


@pytest.mark.parametrize("name", END_TO_END)
def test_a_router_learns_through_the_combination_that_it_answers_in(
    measured, families, name
) -> None:
    form, combine = END_TO_END[name]
    outputs = families[form].outputs(BASE.h, BASE.classifier)

    def answered(through) -> list[float]:
        gate = train_end_to_end(BASE, ROWS, families[form], through, settings=SHORT)
        return hits(combine(outputs, gate.weights(BASE.h)), ROWS).tolist()

    other = Outputs.mixture if combine is Outputs.residual else Outputs.residual
    assert measured["hits"][name] == answered(combine) != answered(other)


def test_a_router_learns_what_its_combination_rewards(families) -> None:
    """Here an answer is as probable as the fourth expert's weight is large."""

    def fourth(outputs: Outputs, alpha: torch.Tensor) -> torch.Tensor:
        return alpha[:, 3:4].expand_as(outputs.base)

    gate = train_end_to_end(BASE, ROWS, families["residual"], fourth, settings=LONG)
    assert float(gate.weights(BASE.h)[:, 3].min()) > 0.9


def test_joint_integration_trains_the_router_and_every_expert_and_changes_neither_given(
    families,
) -> None:
    family = families["residual"]
    gate = train_supervised(BASE, ROWS, settings=SHORT)
    before = [p.clone() for module in (gate, *family.experts) for p in module.parameters()]
    moved, joint = train_jointly(BASE, ROWS, family, gate, settings=SHORT)
    after = [p for module in (joint, *moved.experts) for p in module.parameters()]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    given = [p for module in (gate, *family.experts) for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))
