"""The head of sets of labels, by hand, and the mean over those that know about a label."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import Linear
from redhost.core.bus.label_set_head import GRID, SigmoidHead
from redhost.core.routers.base import as_router
from redhost.registry.errors import UsageError

HEAD, LABELS = SigmoidHead(), ("a", "b", "c")
D = 8


def rows(*labels: str) -> list[redhost.Row]:
    return [redhost.Row(text=str(n), label=y) for n, y in enumerate(labels)]


def test_a_set_has_the_labels_that_reach_their_thresholds() -> None:
    p = torch.tensor([[0.6, 0.5, 0.4], [0.4, 0.3, 0.2]])
    assert [x.label for x in HEAD.read(p, LABELS)] == ["a|b", "none"]
    strict = HEAD.with_thresholds({"a": 0.7, "c": 0.35})
    assert [x.label for x in strict.read(p, LABELS)] == ["b|c", "none"]
    assert HEAD.read(p, LABELS)[0].probability == pytest.approx(0.6 * 0.5 * 0.6)


def test_a_row_is_right_when_the_whole_set_is_in_any_order() -> None:
    p = torch.tensor([[0.9, 0.9, 0.1]]).expand(4, -1)
    assert HEAD.right(p, rows("a|b", "b|a", "a", "a|b|c"), LABELS).tolist() == [1, 1, 0, 0]


def test_targets_and_answers_are_each_others_inverse() -> None:
    answers = ("a|c", "none", "b")
    targets = HEAD.targets(answers, LABELS)
    assert targets.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert HEAD.answers(targets, LABELS) == answers
    assert HEAD.targets([], LABELS).shape == (0, 3)
    with pytest.raises(UsageError, match="not every label"):
        HEAD.targets(["a|x"], LABELS)


def test_the_loss_is_the_negative_log_probability_of_the_set() -> None:
    logits = torch.tensor([[0.0, math.log(3)]])
    loss = HEAD.loss(logits, HEAD.targets(["b"], ("a", "b")))
    assert float(loss) == pytest.approx(-math.log(0.5 * 0.75))
    assert float(HEAD.silence(logits)) == pytest.approx(-math.log(0.5 * 0.25))


def test_a_threshold_is_that_of_the_largest_f1() -> None:
    """A label that is rightly answered from .2 on, and one that is from .8 on."""
    n = 200
    low, high = torch.rand(2, n, generator=torch.Generator().manual_seed(0))
    p = torch.stack([low, high], dim=1)
    found = HEAD.fit_thresholds(p, torch.stack([low >= 0.2, high >= 0.8], dim=1).long())
    assert abs(found[0] - 0.2) <= 0.05 and abs(found[1] - 0.8) <= 0.05
    assert set(found) <= set(GRID)


def test_one_row_moves_no_threshold_far_from_what_all_labels_say() -> None:
    p = torch.full((100, 2), 0.1)
    p[:, 0] = 0.45  # where half the rows do not have the first label
    p[:50, 0] = 0.9
    p[0, 1] = 0.15  # the one row that has the second label
    targets = torch.zeros(100, 2, dtype=torch.int64)
    targets[:50, 0] = 1
    targets[0, 1] = 1
    alone, beside = HEAD.fit_thresholds(p[:, 1:], targets[:, 1:]), HEAD.fit_thresholds(p, targets)
    assert alone == (0.15,) and beside == (0.5, 0.5)


# -- on the bus -----------------------------------------------------------------------------------


def saying(odds: Mapping[str, float], thresholds: Sequence[float] = ()) -> redhost.Expert:
    """An expert that answers each label with a probability, whatever it reads."""
    b = torch.tensor([math.log(p / (1 - p)) for p in odds.values()])
    expert = Linear(W=torch.zeros(len(odds), D), b=b, space="labels", labels=tuple(odds))
    expert.thresholds = tuple(thresholds)
    return expert


def bus_of(*experts: redhost.Expert, classifier: Tensor | None = None) -> redhost.Bus:
    return redhost.Bus(
        Readout(
            classifier=classifier,
            labels=() if classifier is None else ("s", "a")[: len(classifier)],
            task=redhost.plugins.make_task("multi-label"),
        ),
        norm=LayerNorm(width=D, eps=1e-5),
        router=as_router(nn.Identity()),
        experts={f"e{n}": e for n, e in enumerate(experts)},
        backbone_column=True,
    )


@pytest.fixture
def h() -> Tensor:
    return torch.randn(1, D, generator=torch.Generator().manual_seed(5))


def answer(bus: redhost.Bus, h: Tensor, *alpha: float) -> dict[str, float]:
    p = bus.probabilities(h, bus.norm(h), torch.tensor([alpha]))
    return dict(zip(bus.labels, p[0].tolist(), strict=True))


def test_an_expert_without_a_label_is_no_evidence_against_it(h: Tensor) -> None:
    """A text of two domains keeps the labels of both: with zeros it would lose them."""
    bus = bus_of(saying({"a": 0.9}), saying({"b": 0.8, "c": 0.1}))
    assert answer(bus, h, 0.5, 0.5, 0.0) == pytest.approx({"a": 0.9, "b": 0.8, "c": 0.1})


def test_what_is_nobodys_business_has_no_label(h: Tensor) -> None:
    bus = bus_of(saying({"a": 0.9}), saying({"b": 0.8}))
    assert answer(bus, h, 0.0, 0.0, 1.0) == {"a": 0, "b": 0}
    found = answer(bus, h, 0.3, 0.6, 0.1)
    assert found == pytest.approx({"a": 0.9 * 0.3 / 0.4, "b": 0.8 * 0.6 / 0.7})


def test_experts_that_share_a_label_are_averaged_by_their_weights(h: Tensor) -> None:
    bus = bus_of(saying({"a": 0.9}, (0.4,)), saying({"a": 0.3}, (0.2,)), saying({"b": 0.5}))
    assert answer(bus, h, 0.2, 0.4, 0.4, 0.0)["a"] == pytest.approx((0.2 * 0.9 + 0.4 * 0.3) / 0.6)
    head = bus.task.head
    assert isinstance(head, SigmoidHead) and head.thresholds == pytest.approx({"a": 0.3})
    assert [bus.head_of(k).read(torch.tensor([[0.3]]), ("a",))[0].label for k in (0, 1)] == [
        "none",
        "a",
    ]


def test_without_weight_on_anybody_who_knows_there_is_no_label(h: Tensor) -> None:
    bus = bus_of(saying({"a": 0.9}), saying({"b": 0.8}))
    assert answer(bus, h, 1.0, 0.0, 0.0) == pytest.approx({"a": 0.9, "b": 0.0})


def test_a_label_of_the_backbones_is_known_to_all_that_share_it(h: Tensor) -> None:
    classifier = torch.randn(2, D, generator=torch.Generator().manual_seed(1))
    own = torch.sigmoid(h @ classifier.T)[0].tolist()
    bus = bus_of(saying({"a": 0.9}), saying({"b": 0.8}), classifier=classifier)
    found = answer(bus, h, 0.5, 0.3, 0.2)
    assert found["s"] == pytest.approx(own[0])  # of the backbone alone
    assert found["a"] == pytest.approx((0.2 * own[1] + 0.5 * 0.9) / 0.7)
    assert found["b"] == pytest.approx(0.3 * 0.8 / 0.5)
    assert answer(bus, h, 0.0, 0.0, 0.0) == pytest.approx({"s": own[0], "a": own[1], "b": 0.0})


def test_the_mixture_is_the_same_mean(h: Tensor) -> None:
    bus = bus_of(saying({"a": 0.9}), saying({"b": 0.8, "a": 0.2}))
    alpha = torch.tensor([[0.3, 0.5, 0.2]])
    torch.testing.assert_close(
        bus.mixture(h, bus.norm(h), alpha), bus.probabilities(h, bus.norm(h), alpha)
    )


def test_a_newcomer_changes_no_answer_but_by_its_weight(h: Tensor) -> None:
    two = bus_of(saying({"a": 0.9}), saying({"b": 0.8}))
    three = bus_of(saying({"a": 0.9}), saying({"b": 0.8}), saying({"c": 0.7}))
    before = answer(two, h, 0.6, 0.3, 0.1)
    after = answer(three, h, 0.3, 0.15, 0.5, 0.05)  # the others' shares as they were
    assert {y: after[y] for y in before} == pytest.approx(before)


def test_an_expert_knows_about_its_own_labels() -> None:
    bus = bus_of(saying({"a": 0.9}), saying({"b": 0.8, "c": 0.7}))
    assert bus.labels_known(torch.tensor([0, 1, -1])).tolist() == [[1, 0, 0], [0, 1, 1], [1, 1, 1]]


SHARING = {"a": 0.6, "b": 0.8}
"""An expert's labels, one of which the backbone has too."""


def test_the_backbone_supports_its_own_labels_with_the_weight_that_is_left() -> None:
    bus = bus_of(saying({"c": 0.9}), saying(SHARING), classifier=torch.zeros(2, D))
    assert bus.labels == ("s", "a", "c", "b")
    h = torch.randn(2, D, generator=torch.Generator().manual_seed(5))
    z, alpha = bus.norm(h), torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.4, 0.0]])
    shared = (0.3 * 0.5 + 0.5 * 0.6) / (0.3 + 0.5)
    expected = torch.tensor([[0.5, shared, 0.9 * 0.2 / 0.5, 0.8 * 0.5 / 0.8], [0, 0.6, 0.9, 0.8]])
    assert torch.allclose(bus.probabilities(h, z, alpha), expected)
    assert torch.allclose(bus.mixture(h, z, alpha), expected)


def test_rows_are_annotated_for_the_labels_of_their_own_expert_only() -> None:
    bus = bus_of(saying({"c": 0.9}), saying(SHARING), classifier=torch.zeros(2, D))
    known = bus.labels_known(torch.tensor([1, 0, 2, -1]))
    assert known.tolist() == [[0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    p = torch.full((4, 4), 0.5)
    assert torch.equal(bus.annotated(p, lambda: torch.tensor([1, 0, 2, -1])), known / 2)


def test_one_experts_answer_is_of_its_own_labels(h: Tensor) -> None:
    bus = bus_of(saying({"c": 0.9}), saying(SHARING), classifier=torch.zeros(2, D))
    z = bus.norm(h)
    assert [bus.answered_by(k) for k in (0, 1)] == [("c",), ("a", "b")]
    assert bus.own_answer(h, z, 1)[0].tolist() == pytest.approx([0.6, 0.8])
    assert bus.own_answer(h, z, 0)[0].tolist() == pytest.approx([0.9])
