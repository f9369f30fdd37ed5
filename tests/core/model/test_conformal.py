"""Declining and label sets: what is promised of rows nobody has seen, and when nothing can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from redhost_author.training.packaging import texts_card
from torch import Tensor

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import ClassifierExpert
from redhost.core.bus.layout import FeatureLayout
from redhost.core.bus.task import CLASSIFICATION, NumberHead
from redhost.core.bus.unit import WholeText
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.label_sets import DECLINED
from redhost.core.model.conformal import (
    Calibration,
    calibrate,
    familiarity,
    label_sets,
    rows_needed,
    threshold,
    too_few,
)
from redhost.core.routers.linear import LinearRouter
from redhost.core.types import CardRow

WORLD = ("blue", "green", "red")
DRAWS = 40
"""Calibrations drawn anew; promises hold on their average."""


@pytest.mark.parametrize(("share", "rows"), [(0.05, 19), (0.1, 9), (0.01, 99), (0.3, 3), (0.5, 1)])
def test_the_fewest_rows_a_share_needs(share, rows) -> None:
    scores = torch.arange(rows, dtype=torch.float64)
    assert rows_needed(share) == rows
    assert threshold(scores, share) == 0.0 and threshold(scores[1:], share) == -math.inf


def test_the_threshold_is_the_smallest_score_that_keeps_the_promise() -> None:
    scores = torch.tensor([5.0, 1.0, 3.0, 2.0, 4.0, 9.0, 8.0, 7.0, 6.0])
    assert [threshold(scores, e) for e in (0.1, 0.19, 0.2, 0.5)] == [1.0, 1.0, 2.0, 5.0]


def test_experts_with_few_rows_share_a_threshold_with_the_next() -> None:
    group = torch.tensor([0] * 2 + [1] * 9 + [2] * 12 + [3])
    known = Calibration(group=group)
    scores = torch.arange(24, dtype=torch.float64)
    # The two with few rows need nine more: those of the next smallest.
    assert known.thresholds(scores, 0.1, groups=4).tolist() == [0.0, 0.0, 11.0, 0.0]
    assert known.rows("abcd") == {"a": 2, "b": 9, "c": 12, "d": 1}
    assert too_few(known.rows("abcd"), 0.1) == (
        "'a' answers 2 gate rows, 9 are needed for 10 %: it shares a threshold",
        "'d' answers 1 gate row, 9 are needed for 10 %: it shares a threshold",
    )
    nothing = known.thresholds(scores, 0.01, groups=4)
    assert nothing.tolist() == [-math.inf] * 4 and nothing.dtype == torch.float64
    assert {w.partition(": ")[2] for w in too_few(known.rows("abcd"), 0.01)} == {
        "there is no threshold"
    }


@pytest.mark.parametrize(("others", "so"), [(5, "shares"), (4, "is no")])
def test_exactly_as_many_rows_as_are_needed_share_a_threshold(others: int, so: str) -> None:
    [first, _] = too_few({"a": 4, "b": others}, 0.1)
    assert f" {so} " in first.rpartition(":")[2]


def test_rows_of_an_expert_that_is_not_named_are_refused() -> None:
    known = Calibration(group=torch.tensor([0, 2, 2]))
    assert known.rows("abc") == {"a": 1, "b": 0, "c": 2}
    with pytest.raises(ValueError, match="longer"):
        known.rows("ab")


def test_labels_as_probable_as_each_other_stay_in_the_order_of_the_bus() -> None:
    bus = own_labels()
    p = torch.tensor([[0.0, 0.2, 0.3, 0.2, 0.3]])
    known = Calibration(group=torch.tensor([0]), likelihood=torch.tensor([0.1]))
    [found] = label_sets(bus, p, torch.tensor([[1.0, 0, 0]]), calibration=known, share=0.5)
    assert found == ("b", "d", "a", "c")


def test_no_gate_rows_have_no_scores() -> None:
    bus, h = own_labels(), torch.empty(0, 16)
    found = calibrate(bus, h, torch.empty(0, 5), torch.empty(0, 3), [], decline=True)
    assert {n: len(t) for n, t in vars(found).items()} == dict.fromkeys(vars(found), 0)


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ([9, 9], [0.0, 9.0]),  # just enough each: nothing is shared
        ([4, 5, 12], [0.0, 0.0, 9.0]),  # just enough together: the third keeps its own
        ([4, 4], [-math.inf, -math.inf]),
    ],
)
def test_no_more_rows_are_shared_than_are_needed(rows, right) -> None:
    group = torch.cat([torch.full((n,), k) for k, n in enumerate(rows)])
    scores = torch.arange(len(group), dtype=torch.float64)
    assert Calibration(group=group).thresholds(scores, 0.1, groups=len(rows)).tolist() == right


def own_labels() -> redhost.Bus:
    """Return a bus of two experts with labels of their own, between which nothing chooses."""
    experts = {
        name: ClassifierExpert(
            U=torch.randn(4, 16, generator=torch.Generator().manual_seed(n)),
            V=torch.randn(16, 4, generator=torch.Generator().manual_seed(n + 2)),
            W=torch.randn(2, 16, generator=torch.Generator().manual_seed(n + 4)),
            b=torch.zeros(2),
            activation="relu",
            labels=labels,
            temperature=1.0,
        )
        for n, (name, labels) in enumerate({"one": ("a", "b"), "two": ("c", "d")}.items())
    }
    return redhost.Bus(
        Readout(),
        norm=LayerNorm(width=16, eps=1e-5),
        router=LinearRouter(width=16, columns=("one", "two", "backbone")),
        experts=experts,
        backbone_column=True,
    )


def test_where_labels_are_the_experts_own_nobody_is_no_label_of_a_set() -> None:
    """However probable it is that no expert should answer."""
    bus = own_labels()
    p = torch.tensor([[0.6, 0.3, 0.1, 0.0, 0.0], [0.1, 0.2, 0.3, 0.0, 0.4]])
    alpha = torch.tensor([[0.2, 0.1, 0.7], [0.2, 0.7, 0.1]])
    assert bus.labels == (DECLINED, "a", "b", "c", "d") and p[0].argmax() == 0
    known = Calibration(group=torch.tensor([0, 1]), likelihood=torch.tensor([0.25, 0.35]))
    found = label_sets(bus, p, alpha, calibration=known, share=0.5)
    assert found == [("a",), ("d",)]
    known = Calibration(group=torch.tensor([0, 1]), likelihood=torch.tensor([0.05, 0.25]))
    assert label_sets(bus, p, alpha, calibration=known, share=0.5) == [("a", "b"), ("d", "b")]
    h = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    right = torch.tensor([0.3, 0.4], dtype=torch.float64).logit()
    assert torch.allclose(familiarity(bus, h, p), right, atol=1e-6)


def test_what_cannot_be_is_refused_in_words(generation) -> None:
    bus, rows = own_labels(), torch.ones(1, 5)
    with pytest.raises(redhost.UsageError) as e:
        label_sets(bus, rows, rows, calibration=Calibration(group=torch.ones(1)), share=0.5)
    assert str(e.value) == "there are no label sets of this composition: expected labels"
    bus.task = generation
    nothing = calibrate(bus, torch.ones(1, 16), rows, rows, [], decline=False)
    assert nothing.likelihood is nothing.familiarity is None and nothing.group.tolist() == [0]
    with pytest.raises(redhost.UsageError) as e:
        familiarity(bus, torch.ones(1, 16), rows)
    assert str(e.value) == (
        "this composition cannot decline: expected labels to answer with, or a router with a "
        "density per expert, found generation. Leave out --decline."
    )


def test_own_thresholds_are_those_of_each_experts_own_rows() -> None:
    owner, own = torch.tensor([0, 1] * 9), torch.arange(18, dtype=torch.float64)
    known = Calibration(group=torch.zeros(18, dtype=torch.int64), owner=owner, own=own)
    bus: Any = SimpleNamespace(ids=("a", "b"))
    assert known.own_thresholds(0.2, bus) == [2.0, 3.0]  # the second of ten
    assert known.own_thresholds(0.01, bus) == [-math.inf, -math.inf]
    assert Calibration(group=known.group).own_thresholds(0.2, bus) is None


def test_scores_of_gate_rows_by_hand() -> None:
    """With D = 8 a density's standard deviation is 2; own answers are those of one expert."""
    z = torch.zeros(3, 8)
    z[:, 0], z[:, 1] = torch.tensor([3.0, -2.0, 1.0]), torch.tensor([9.0, 4.0, -6.0])
    alone = {0: torch.tensor([[0.9, 0.1]]), 1: torch.tensor([[0.5, 0.5], [0.25, 0.75]])}
    bus: Any = SimpleNamespace(
        ids=("a", "b"),
        labels=("x", "y"),
        shared_labels=True,
        layout=FeatureLayout(width=8),
        norm=torch.nn.Identity(),
        router=SimpleNamespace(log_density=lambda z: z[:, 0], log_densities=lambda z: z[:, :2]),
        task=CLASSIFICATION,
        own_answer=lambda h, z, column: alone[column],
    )
    p = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]])
    alpha = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]])
    rows = [
        redhost.Row(text="", label=y, domain=d) for y, d in (("x", "a"), ("x", "b"), ("new", "b"))
    ]
    plain = calibrate(bus, z, p, alpha, rows, decline=False)
    assert plain.familiarity is plain.owner is plain.own is None
    found = calibrate(bus, z, p, alpha, rows, decline=True)
    for made in (plain, found):
        assert made.group.tolist() == [0, 1, 0]  # the backbone's column is nobody's
        assert made.likelihood is not None
        assert made.likelihood.tolist() == pytest.approx([0.8, 0.4, 0.0])
    assert found.familiarity is not None and found.owner is not None and found.own is not None
    assert found.familiarity.tolist() == pytest.approx([math.log(4) + 1.5, math.log(1.5) - 1, 0.5])
    assert found.owner.tolist() == [0, 1, 1]
    assert found.own.tolist() == pytest.approx([math.log(9) + 1.5, 2.0, math.log(3) - 3])
    bus.router = SimpleNamespace(log_density=lambda z: None, log_densities=lambda z: None)
    assert familiarity(bus, z, p).tolist() == pytest.approx([math.log(4), math.log(1.5), 0.0])
    bus.task = SimpleNamespace(head=NumberHead(), unit=WholeText(), name="other")
    with pytest.raises(redhost.UsageError) as refused:
        familiarity(bus, z, p)
    assert "--router quadratic" in refused.value.hint and refused.value.found == "other"


def test_a_calibration_comes_back_from_bytes() -> None:
    known = Calibration(group=torch.tensor([1, 0]), likelihood=torch.tensor([0.25, 1.0]))
    again = Calibration.load(known.save())
    assert torch.equal(again.group, known.group) and again.familiarity is None
    assert again.likelihood is not None and again.likelihood.tolist() == [0.25, 1.0]


@pytest.fixture(scope="module")
def composed(backbone_folder: Path, expert_folders: dict[str, Path]) -> redhost.ComposedModel:
    return compose(backbone_folder, list(expert_folders.values())).composed


Draw = Callable[[int, int], tuple[Tensor, list[redhost.Row]]]


@pytest.fixture(scope="module")
def draw(composed: redhost.ComposedModel) -> Draw:
    """Return rows of a population in the space of features, whose answers are often not the top."""
    texts = [f"{w} {n} {w[0]}" for w in WORLD for n in range(40)]
    h = composed.backbone.encode(texts)

    def rows(count: int, seed: int) -> tuple[Tensor, list[redhost.Row]]:
        generator = torch.Generator().manual_seed(seed)
        at = torch.randint(len(h), (count,), generator=generator)
        drawn = h[at] + 0.3 * h.std() * torch.randn(count, h.shape[1], generator=generator)
        with torch.inference_mode():
            p, _ = composed.bus(drawn)
        given = torch.multinomial(p**0.5, 1, generator=generator)[:, 0]
        labels = [composed.bus.labels[int(k)] for k in given]
        return drawn, [redhost.Row(text="", label=y) for y in labels]

    return rows


def scores(model: redhost.ComposedModel, h: Tensor, rows: list[redhost.Row]) -> Calibration:
    with torch.inference_mode():
        p, alpha = model.bus(h)
        return calibrate(model.bus, h, p, alpha, rows, decline=True)


@pytest.mark.parametrize(("share", "size"), [(0.05, 60), (0.05, 200), (0.2, 60), (0.1, 31)])
def test_own_rows_are_declined_as_rarely_as_promised(composed, draw, share, size) -> None:
    """On the average over calibrations; the groups' rounding down is all that is lost."""
    declined, losses = list[float](), list[float]()
    for seed in range(DRAWS):
        known = scores(composed, *draw(size, seed))
        new = scores(composed, *draw(1000, 1000 + seed))
        t = known.thresholds(known.familiarity, share, groups=3)
        declined.append(float((new.familiarity < t[new.group]).double().mean()))
        losses.append(3 / size)
    mean = sum(declined) / DRAWS
    noise = 3 * (share / size / DRAWS) ** 0.5
    assert share - losses[0] - noise < mean < share + noise


@pytest.mark.parametrize(("level", "size"), [(0.9, 60), (0.9, 200), (0.7, 60)])
def test_label_sets_hold_the_right_label_as_often_as_promised(composed, draw, level, size) -> None:
    bus, found, sizes = composed.bus, list[float](), list[float]()
    for seed in range(DRAWS):
        known = scores(composed, *draw(size, seed))
        h, rows = draw(500, 1000 + seed)
        with torch.inference_mode():
            p, alpha = bus(h)
        sets = label_sets(bus, p, alpha, calibration=known, share=1 - level)
        found.append(sum(r.label in s for r, s in zip(rows, sets, strict=True)) / len(rows))
        sizes.append(sum(map(len, sets)) / len(rows))
        assert all(s[0] == bus.labels[int(k)] for s, k in zip(sets, p.argmax(-1), strict=True))
    mean = sum(found) / DRAWS
    assert level - 3 * ((1 - level) / size / DRAWS) ** 0.5 < mean
    assert mean < level + 3 / size + 0.03 or max(sizes) < 2  # sets of one label may do better
    assert 1 <= max(sizes) < len(bus.labels)


def test_every_expert_has_a_promise_of_its_own(composed, draw) -> None:
    by_group = torch.zeros(3, 2)
    for seed in range(DRAWS):
        known, new = scores(composed, *draw(240, seed)), scores(composed, *draw(900, 1000 + seed))
        t = known.thresholds(known.familiarity, 0.1, groups=3)
        low = (new.familiarity < t[new.group]).float()
        by_group[:, 0].index_add_(0, new.group, low)
        by_group[:, 1].index_add_(0, new.group, torch.ones_like(low))
    shares = by_group[:, 0] / by_group[:, 1]
    assert bool((shares < 0.115).all()) and bool((shares > 0.06).all())


def test_rows_far_from_every_card_are_not_familiar(composed, draw) -> None:
    own, _ = draw(50, 0)
    far = own + 4 * own.std() * torch.randn(own.shape, generator=torch.Generator().manual_seed(9))
    with torch.inference_mode():
        near, away = (familiarity(composed.bus, h, composed.bus(h)[0]) for h in (own, far))
    assert float(away.quantile(0.75)) < float(near.quantile(0.25))


# -- in a composition --------------------------------------------------------------------------


def test_without_a_share_nothing_changes(backbone_folder, expert_folders) -> None:
    folders = list(expert_folders.values())
    plain = compose(backbone_folder, folders)
    options = RecomposeOptions(router="evidence", decline=0.2)
    declining = compose(backbone_folder, folders, options=options)
    texts = [f"red {n} a" for n in range(70, 90)] + ["qqqq"]
    before, after = plain.composed.answer(texts), declining.composed.answer(texts)
    assert plain.receipt.decline is None and plain.composed.decline_thresholds is None
    assert declining.receipt.router.digest == plain.receipt.router.digest
    assert [a.weights for a in before] == [a.weights for a in after]
    assert not any(a.declined for a in before) and all(a.labels is None for a in before)
    assert after[-1].declined and after[-1].label == "none" and after[-1].probability == 0.0
    left = [(a, b) for a, b in zip(before, after, strict=True) if not b.declined]
    assert left and all((a.label, a.probability) == (b.label, b.probability) for a, b in left)


def test_the_receipt_says_where_gate_rows_are_too_few(backbone_folder, expert_folders) -> None:
    options = RecomposeOptions(router="evidence", decline=0.05)
    composition = compose(backbone_folder, list(expert_folders.values()), options=options)
    report = composition.receipt.decline
    assert report is not None and (report.share, report.needed) == (0.05, 19)
    assert sum(report.rows.values()) == 30 and len(report.warnings) == 3
    assert len({*report.thresholds.values()}) == 1 and None not in report.thresholds.values()
    assert len(composition.composed.set_warnings(0.9)) == sum(n < 9 for n in report.rows.values())


@pytest.mark.parametrize("router", ["linear", "statistics", "quadratic", "shortlist", "centroid"])
def test_every_kind_of_router_can_decline(backbone_folder, expert_folders, router) -> None:
    options = RecomposeOptions(router=router, decline=0.2)
    model = compose(backbone_folder, list(expert_folders.values()), options=options).composed
    gate = model.answer([r.text for c in model.cards.values() for r in c.rows if r.part == "gate"])
    assert len(gate) == 30 and sum(a.declined and a.label == "none" for a in gate) <= 6
    assert model.decline_thresholds is not None and bool(model.decline_thresholds.isfinite().all())


def test_sums_alone_give_no_promise(backbone_folder, build_expert, tmp_path, composed) -> None:
    rows = [CardRow(text=f"red {n} a", label="a", part="fit") for n in range(9)]
    rows += [CardRow(text=f"red {n} b", label="b", part="fit") for n in range(9)]
    card = texts_card(rows)
    folder = build_expert(tmp_path, "red", card=card)
    options = RecomposeOptions(router="evidence", decline=0.05)
    made = compose(backbone_folder, [folder], options=options)
    assert made.receipt.decline is not None
    assert made.receipt.decline.thresholds == {"red": None}
    assert made.receipt.decline.rows == {"red": 0}
    [warning] = made.receipt.decline.warnings
    assert "0 gate rows, 19 are needed" in warning
    assert not made.composed.answer(["qqqq"])[0].declined
    with pytest.raises(redhost.UsageError, match="gate rows"):
        made.composed.answer(["red 1 a"], sets=0.9)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, -0.1])
def test_levels_that_mean_nothing_are_refused(composed, level) -> None:
    with pytest.raises(redhost.UsageError, match="between 0 and 1"):
        composed.answer(["red 1 a"], sets=level)
