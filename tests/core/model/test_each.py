"""Every expert's own answer: as if it were alone, and declined as rarely as was promised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import redhost_author
import torch

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose

TEXTS = [f"{word} {n} {word[0]}" for word in ("red", "green", "blue") for n in range(80, 90)]
NAMES = ("blue", "green", "red")


@pytest.fixture(scope="module", params=["labels", "hidden", "logits"])
def folders(request, build_expert, tmp_path_factory) -> list[Path]:
    """Three experts that write labels of their own, or share the backbone's, as folders."""
    settings = redhost_author.ExpertSettings(
        space=request.param, rank=4, epochs=20, learning_rate=1e-2
    )
    return [build_expert(tmp_path_factory.mktemp(n), n, settings=settings) for n in NAMES]


def composed(backbone: Path, folders: list[Path], **options) -> redhost.ComposedModel:
    given = RecomposeOptions(router="quadratic", **options)
    return compose(backbone, folders, options=given).composed


def test_it_is_what_the_expert_answers_where_nobody_else_is_composed(
    backbone_folder, folders
) -> None:
    answers = composed(backbone_folder, folders).answer(TEXTS, each=True)
    for name, folder in zip(NAMES, folders, strict=True):
        model = composed(backbone_folder, [folder], backbone_column=False)
        alone = model.answer(TEXTS, each=True)
        own = model.bus.own  # labels of its own: not even a sum is between it and the answer
        for answer, one in zip(answers, alone, strict=True):
            assert answer.by_expert is not None and one.by_expert is not None
            assert list(answer.by_expert) == list(NAMES)
            assert answer.by_expert[name] == one.by_expert[name]
            assert one.by_expert[name].label == one.label
            assert one.probability == pytest.approx(one.by_expert[name].probability, rel=1e-5)
            assert not own or one.probability == one.by_expert[name].probability


def test_the_composed_answer_stays_as_it_is(backbone_folder, folders) -> None:
    model = composed(backbone_folder, folders)
    for answer, plain in zip(model.answer(TEXTS, each=True), model.answer(TEXTS), strict=True):
        assert plain.by_expert is None
        assert (answer.label, answer.probability, answer.weights) == (
            plain.label,
            plain.probability,
            plain.weights,
        )


def test_an_expert_declines_few_texts_of_its_own_and_those_of_others(
    backbone_folder, folders, texts_of: Callable[..., list[tuple[str, str]]]
) -> None:
    share = 0.2
    model = composed(backbone_folder, folders, decline=share)
    assert model.calibration is not None and model.calibration.own is not None
    # Gate rows, of which the promise is exact: the threshold is one of their own scores.
    for name in NAMES:
        gate = [text for text, _ in texts_of(name, 10, start=50)]
        answers = model.answer(gate, each=True)
        found = [a.by_expert[name].declined for a in answers if a.by_expert is not None]
        assert sum(found) / len(found) <= share
        others = [
            a.by_expert[n].declined for a in answers for n in NAMES if a.by_expert and n != name
        ]
        assert sum(others) / len(others) > 0.5
    never = composed(backbone_folder, folders).answer(TEXTS, each=True)
    assert not any(own.declined for a in never for own in (a.by_expert or {}).values())


def test_a_calibration_made_before_declines_for_nobody_alone(backbone_folder, folders) -> None:
    model = composed(backbone_folder, folders, decline=0.2)
    assert model.calibration is not None
    older = dataclasses.replace(model.calibration, owner=None, own=None)
    again = type(older).load(older.save())
    answers = dataclasses.replace(model, calibration=again).answer(["good morning"], each=True)
    assert not any(own.declined for own in (answers[0].by_expert or {}).values())
    assert torch.equal(again.group, older.group)
