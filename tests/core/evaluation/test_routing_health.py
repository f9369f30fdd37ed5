"""Routing health: each failure is seen when it is there, and not when it is not."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch
from redhost_robust.routers import BlendRouter

import redhost
from redhost.core.bus.experts import LowRank
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.evaluation.routing_health import routing_health
from redhost.core.receipt import Health


@pytest.fixture(scope="module")
def composed(backbone_folder, expert_folders) -> redhost.ComposedModel:
    torch.set_num_threads(1)
    return compose(backbone_folder, list(expert_folders.values())).composed


def with_routes(composed: redhost.ComposedModel, logits: list[float]) -> redhost.ComposedModel:
    """The same composition with a router that sends every row the same way."""
    columns = composed.bus.columns
    router = BlendRouter(width=composed.backbone.bus_config().router_width, columns=columns)
    router.load_tensors({"logit": torch.tensor(logits)})
    bus = redhost.Bus(
        composed.bus.readout,
        norm=composed.bus.norm,
        router=router,
        experts=dict(zip(composed.bus.ids, composed.bus.parts(), strict=True)),
        backbone_column=len(columns) > len(composed.bus.ids),
    )
    return dataclasses.replace(composed, bus=bus)


def health(
    composed: redhost.ComposedModel, previous: redhost.ComposedModel | None = None
) -> Health:
    rows = composed.evaluation
    h = composed.backbone.encode([r.text for r in rows])
    return routing_health(composed, h, rows, previous=previous)


def test_a_good_router_has_nothing_to_be_warned_of(composed) -> None:
    found = health(composed, composed)
    assert found.flips == 0 and found.dead == ()
    assert found.entropy > 0.8 and found.expected_entropy == pytest.approx(1)
    assert found.distance is not None and found.distance > 0.1
    assert sum(found.usage.values()) == pytest.approx(1)
    assert not found.warnings


def test_where_the_backbone_takes_every_row_experts_have_no_entropy(composed) -> None:
    columns = [-1e9] * len(composed.bus.ids) + [0.0]
    found = health(with_routes(composed, columns))
    assert found.entropy == 0 and msgspec.json.decode(msgspec.json.encode(found), type=Health)


def test_collapse_and_dead_experts_are_seen(composed) -> None:
    found = health(with_routes(composed, [9.0, 0.0, 0.0, 0.0]))
    one, *others = composed.bus.ids
    assert found.entropy < 0.1 and found.dead == tuple(others)
    collapse, dead = found.warnings
    assert collapse.startswith("collapse") and one in collapse
    assert dead.startswith("dead") and others[0] in dead


def test_thrashing_is_routes_that_flip_between_generations(composed) -> None:
    one, two = (with_routes(composed, w) for w in ([1.0, 0, 0, 0], [0, 1.0, 0, 0]))
    found = health(two, one)
    [warning] = [w for w in found.warnings if w.startswith("thrashing")]
    assert found.flips == 1 and "100% of the routes flipped" in warning
    assert "cards with more rows" in warning
    assert health(two, two).flips == 0


def test_routes_are_compared_by_name_where_columns_moved(composed, backbone_folder, expert_folders):
    rest = sorted(expert_folders)[1:]
    fewer = compose(backbone_folder, [expert_folders[i] for i in rest]).composed
    found = health(fewer, composed)
    assert found.flips is not None and found.flips < 0.2


def test_experts_that_answer_alike_do_not_specialise(composed) -> None:
    one = composed.bus.parts()[0]
    same = with_routes(composed, [0.0, 0, 0, 0])
    bus = redhost.Bus(
        same.bus.readout,
        norm=same.bus.norm,
        router=same.bus.router,
        experts=dict.fromkeys(same.bus.ids, one),
        backbone_column=True,
    )
    found = health(dataclasses.replace(same, bus=bus))
    assert found.distance == 0
    assert any(w.startswith("no specialisation") for w in found.warnings)


def test_a_loud_expert_is_seen(composed) -> None:
    loud = with_routes(composed, [0.0, 0, 0, 0])
    first = loud.bus.parts()[0]
    assert isinstance(first, LowRank)
    before = {k: v.clone() for k, v in first.state_dict().items()}
    try:
        first.V.data *= 1000
        found = health(loud)
    finally:
        first.load_state_dict(before)
    assert any(w.startswith("imbalance") and loud.bus.ids[0] in w for w in found.warnings)


def test_the_receipt_and_the_evaluation_carry_it(backbone_folder, expert_folders) -> None:
    outcome = compose(backbone_folder, list(expert_folders.values()))
    assert outcome.receipt.health is not None and outcome.receipt.health.flips is None
    again = msgspec.json.decode(msgspec.json.encode(outcome.receipt), type=redhost.Receipt)
    assert again == outcome.receipt
    made = outcome.composed
    result = evaluate(made, made.evaluation, encode=made.backbone.encode)
    assert result.routing is not None and result.routing.rows == len(made.evaluation)
