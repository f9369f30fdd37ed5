"""Generations whose experts and router read words, on onnxruntime."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import redhost_author
import torch
from redhost_onnx.generation import export_generation
from redhost_onnx.runtime import ExportedGeneration
from redhost_words.places import MOST, Channel, Words, vocabulary_of
from redhost_words.router import WordsRouter

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.model.composed import ComposedModel

from ..plugins.words.conftest import TEAMS, text_package, texts_of, trained


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> ComposedModel:
    """Two teams' experts of words under the router of counts; too few gate rows to decline by."""
    folder = tmp_path_factory.mktemp("words")
    backbone = text_package(folder, redhost.testing.tiny_backbone(folder / "encoder"))
    context = redhost_author.open_for_training(backbone)
    packages = [trained(folder / team, team, context=context) for team in TEAMS]
    options = RecomposeOptions(router="words", decline=0.01, accept=True)
    return compose(backbone, packages, options=options).composed


def test_words_are_in_the_graph(composed, tmp_path: Path) -> None:
    assert isinstance(composed.bus.router, WordsRouter)
    record = export_generation(composed, tmp_path / "made")
    found = ExportedGeneration(tmp_path / "made")
    assert record.texts == 100 and record.away < 1e-4 and found.inputs == {"ids", "whole"}
    texts = [r.text for team in TEAMS for r in texts_of(team, 40, seed=7)]
    texts += ["rook", "qqqq!", "the rook " * 200]
    unheard = composed.backbone.encode(texts)
    unheard[:, composed.backbone.width :] = 0
    with torch.inference_mode():
        less = composed.bus(unheard)[0].max(1).values
    differ = 0
    for own, answer, deaf in zip(composed.answer(texts), found.answer(texts), less, strict=True):
        assert answer.probability == pytest.approx(own.probability, abs=1e-4)
        assert answer.weights == pytest.approx(own.weights, abs=1e-4)
        assert (answer.label, answer.declined, answer.cut) == (own.label, own.declined, own.cut)
        differ += not answer.declined and abs(answer.probability - float(deaf)) > 1e-2
    assert differ > len(texts) / 2  # without its words a text has another answer


@pytest.mark.parametrize(("count", "kinds"), [(2, 2), (40, 9), (900, 30), (4000, 120)])
def test_a_graph_finds_the_words_that_a_host_finds(composed, count: int, kinds: int) -> None:
    vocabulary = vocabulary_of(composed.backbone)
    ids = random.Random(count).choices(range(min(kinds, vocabulary)), k=count)
    own = Words.of_tokens([ids], vocabulary=vocabulary)
    made = Words.of_segment(Channel(backbone=composed.backbone).of_tokens(torch.tensor(ids))[None])
    order = made.places.argsort()
    assert made.places[order].tolist() == own.places.tolist()
    assert made.weights[order].tolist() == own.weights.tolist()
    assert (len(own.places) == MOST) == (count == 4000)  # the first ones, if there are more
