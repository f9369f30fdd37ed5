"""Unknown input: the backbone column declines what is nobody's business."""

from __future__ import annotations

import pytest
import torch
from redhost_report.evaluation import outside
from redhost_report.ood import auroc, evaluate_ood

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.registry.errors import InputTypeError, UsageError


def test_auroc_by_hand() -> None:
    assert auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == 1.0
    assert auroc(torch.tensor([0.0]), torch.tensor([1.0])) == 0.0
    assert auroc(torch.tensor([1.0, 1.0]), torch.tensor([1.0])) == 0.5
    assert auroc(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 2.0, 4.0])) == pytest.approx(0.5)


def test_texts_like_the_background_are_declined(backbone_folder, expert_folders) -> None:
    composed = compose(backbone_folder, list(expert_folders.values())).composed
    texts = [f"nothing {n}" for n in range(40, 60)]
    found = evaluate_ood(composed, texts, composed.evaluation, encode=composed.backbone.encode)
    assert found.rows == 20 and found.auroc > 0.9
    assert found.declined > found.declined_inside


def test_without_a_backbone_column_nothing_can_be_declined(backbone_folder, expert_folders) -> None:
    options = RecomposeOptions(router="linear", backbone_column=False)
    composed = compose(backbone_folder, list(expert_folders.values()), options=options).composed
    with pytest.raises(UsageError, match="cannot decline"):
        evaluate_ood(composed, ["x"], composed.evaluation, encode=composed.backbone.encode)


@pytest.mark.parametrize("given", [None, 3, b"red 1 a", ["red 1 a", None], {"red 1 a": "a"}])
def test_what_is_no_texts_is_a_type_error(given) -> None:
    with pytest.raises(InputTypeError) as e:
        outside(redhost.Host.open(plugins=redhost.plugins.Plugins(())), given)
    assert e.value.found
