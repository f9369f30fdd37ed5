"""What each domain loses without each expert."""

from __future__ import annotations

import pytest
import torch

import redhost
from redhost.core.composition.recompose import compose
from redhost.core.digests import tensor_digest
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.evaluation.with_router import leave_one_out


@pytest.fixture(scope="module")
def composed(backbone_folder, expert_folders) -> redhost.ComposedModel:
    torch.set_num_threads(1)
    return compose(backbone_folder, list(expert_folders.values())).composed


def test_leaving_one_out_equals_composing_without_it(composed, backbone_folder, expert_folders):
    encode = composed.backbone.encode
    matrix = leave_one_out(
        composed, composed.evaluation, encode=encode, plugins=redhost.plugins.Plugins()
    )
    others = [f for name, f in expert_folders.items() if name != "red"]
    without = compose(backbone_folder, others).composed
    expected = evaluate(without, without.evaluation, encode=encode).domains
    assert matrix["red"] == expected


def test_the_composition_is_left_as_it_was(composed) -> None:
    before = tensor_digest(composed.bus.state_dict())
    encode = composed.backbone.encode
    matrix = leave_one_out(
        composed, composed.evaluation, encode=encode, plugins=redhost.plugins.Plugins()
    )
    assert set(matrix) == {"blue", "green", "red"}
    assert tensor_digest(composed.bus.state_dict()) == before
    assert not any(p.requires_grad for p in composed.bus.parameters())


def test_a_single_expert_has_nothing_to_be_left_out_of(backbone_folder, expert_folders) -> None:
    alone = compose(backbone_folder, [expert_folders["red"]]).composed
    encode = alone.backbone.encode
    assert (
        leave_one_out(alone, alone.evaluation, encode=encode, plugins=redhost.plugins.Plugins())
        == {}
    )
