"""Right labels of texts: each is read as the task's head reads it, or refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from redhost_serve.client import Client
from redhost_serve.server import running
from redhost_serve.trial import Labelled, Trial, is_right, score
from torch import Tensor, nn

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import Linear
from redhost.core.routers.base import as_router

TEXT = "What is 2 plus 2?"
TOKEN = "a token that nobody guesses"
RIGHT = ["4", "4.4", "4.443", " 4.0 "]
"""What 4.443 is at a resolution of 1."""


class One(nn.Module):
    """All of the weight for the one expert there is."""

    def forward(self, z: Tensor) -> Tensor:
        return z.new_ones(len(z), 1)


def answering(model: redhost.ComposedModel, number: float) -> redhost.ComposedModel:
    """Return a generation that answers every text with one number."""
    width = model.backbone.width
    weights = {"W": torch.zeros(1, width), "b": torch.tensor([number])}
    bus = redhost.Bus(
        Readout(task=redhost.plugins.make_task("regression")),
        norm=LayerNorm(width=width, eps=1e-5),
        router=as_router(One()),
        experts={"a": Linear(**weights, space="labels", labels=("value",))},
    )
    return dataclasses.replace(model, bus=bus, calibration=None, decline=None)


@pytest.fixture
def numbers(composed_home, open_live) -> redhost.ComposedModel:
    return answering(open_live(composed_home).host.composed, 4.443)


def test_a_number_is_right_as_it_rounds_and_a_canary_that_is_far_off_is_worse(numbers) -> None:
    canary = dataclasses.replace(answering(numbers, 1004.443), generation=7)
    labelled = [Labelled(TEXT, label) for label in (*RIGHT, "5")]
    scored = score((numbers, canary), labelled)
    assert [(a.right, b.right) for a, b in scored] == [(True, False)] * 4 + [(False, False)]
    assert [(a.answer.generation, b.answer.generation) for a, b in scored] == [(3, 7)] * 5
    trial = Trial(model=canary)
    trial.count_labelled(scored)
    assert trial.counted() == {"a": {"worse": 4, "same": 1}}


def test_a_label_that_is_no_answer_is_400_and_counts_nothing(home, open_live, numbers) -> None:
    live = open_live(home)
    with (
        running(live, token=TOKEN) as (url, service),
        Client(url, token=TOKEN) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(redhost.Live, "composed", property(lambda _: numbers))
        body = {"texts": [TEXT] * 5, "labels": [*RIGHT, "5"]}
        production = {"generation": 3, "right": 4, "texts": 5}
        expected = {"production": production, "canary": None}
        assert client.post("/v1/feedback", body).body == expected
        counted = service.metrics.text()
        for label in ("abc", "", "none", "nan", "1e300"):
            reply = client.post("/v1/feedback", {"texts": [TEXT] * 2, "labels": ["4", label]})
            assert reply.status == 400 and "numbers" in reply.body["error"]
        lines = [x for x in counted.decode().splitlines() if "labelled" in x]
        assert lines and all(x in service.metrics.text().decode() for x in lines)


def test_labels_are_those_that_are_answered(composed_home, open_live) -> None:
    model = open_live(composed_home).host.composed
    [answer] = model.answer([TEXT])
    assert is_right(model, answer, answer.label) and not is_right(model, answer, "another")
