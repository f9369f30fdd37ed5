"""What newcomers cost, by hand: labels are points in a plane, and the reference takes the nearest.

Each card's sums are those of four rows around each of two points, at equal distances: the shared
covariance is a multiple of the identity, and the discriminants of the reference name the nearest
point. Rows that a card shows are chosen apart from its sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import redhost
from redhost.core.batching import NUMBERS
from redhost.core.bus.bus import BACKBONE
from redhost.core.bus.layout import FeatureLayout
from redhost.core.bus.task import CLASSIFICATION
from redhost.core.composition import harm
from redhost.core.composition.harm import GateAnswers, excess_harm, updated_members
from redhost.core.routers.base import Router
from redhost.core.routers.cards import Card
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.types import CardRow
from redhost.plugins import ColumnData

POINTS = {
    "a": [(0.0, 0.0), (0.0, 10.0)],
    "b": [(40.0, 0.0), (40.0, 10.0)],
    "c": [(4.0, 0.0), (4.0, 30.0)],
}
AROUND = torch.tensor([(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)], dtype=torch.float64)

SHOWN = {
    "a": [(0.0, 1.0)],
    "b": [(40.0, 1.0)],
    "c": [(4.1, 0.0), (4.2, 0.0), (4.3, 0.0), (4.4, 0.0), (5.5, 0.0)],
}

BLUR = ((2 / 7) * (5 / 7) / 5 + (4 / 5) * (1 / 5) / 3) ** 0.5
"""One row of five wrong, and three of three; each with one more wrong and one more right."""

Gate = dict[str, list[tuple[tuple[float, float], str]]]
GATE: Gate = {
    "a": [
        ((0.0, 0.0), "a0"),
        ((0.5, 0.0), "a0"),
        ((3.9, 0.0), "a0"),  # nearest to c's point, once that is there
        ((0.0, 10.5), "a1"),
        ((1.0, 6.0), "a0"),  # nearest to a's other point all along
    ],
    "b": [((40.0, 0.1 * n), "b0") for n in range(5)],
    "c": [
        ((0.012, 0.0), "c0"),  # a's first row, but for rounding
        ((0.5, 0.0145), "c0"),  # near a's second row, but further than rounding
        ((0.0, 10.5), "a1"),  # a's fourth row, under a's label
    ],
}


def card(name: str, *, width: int = 2) -> ColumnData:
    """The sums of eight rows, and the rows shown; further numbers are chance."""
    rows = torch.cat([torch.tensor(p, dtype=torch.float64) + AROUND for p in POINTS[name]])
    z = torch.tensor(SHOWN[name], dtype=torch.float32)
    if width > 2:
        noise = torch.Generator().manual_seed(ord(name))
        rows, z = (
            torch.cat([x, 9 * torch.randn(len(x), width - 2, generator=noise)], dim=1)
            for x in (rows, z)
        )
    labels = [f"{name}{n // 4}" for n in range(8)]
    return ColumnData(
        column=name,
        z=z.float(),
        statistics=Statistics.of_rows(rows, labels),
        labels=(f"{name}0",) * len(z),
    )


def answers(
    order: str,
    hits: dict[str, Tensor],
    *,
    digests: dict[str, str] | None = None,
    likelihood: dict[str, Tensor] | None = None,
    confidence: dict[str, Tensor] | None = None,
    heaviest: dict[str, Tensor] | None = None,
    gate: Gate = GATE,
    **bus: Any,
) -> tuple[GateAnswers, Tensor]:
    """The answers of a composition to gate rows, domain by domain; and the rows' features."""

    def table(values: dict[str, Tensor] | None, default: float) -> Tensor:
        known = values or {}
        each = (known.get(n, torch.full((len(gate[n]),), default)).double() for n in order)
        return torch.cat([*each])

    known = {
        "ids": tuple(sorted(order)),
        "columns": (*sorted(order), BACKBONE),
        "layout": FeatureLayout(width=2),
        "norm": nn.Identity(),
        "router": nn.Identity(),
        "task": CLASSIFICATION,
        **bus,
    }
    calibration = None if likelihood is None else SimpleNamespace(likelihood=table(likelihood, 0.5))
    model: Any = SimpleNamespace(
        bus=SimpleNamespace(**known),
        digests=digests or dict.fromkeys(known["ids"], "1"),
        cards={},
    )
    result: Any = SimpleNamespace(
        hits=table(hits, 1.0),
        confidence=table(confidence, 0.5),
        heaviest=table(heaviest, 0.0).long(),
        calibration=calibration,
    )
    rows = [redhost.Row(text="", label=y, domain=n) for n in order for _, y in gate[n]]
    h = torch.tensor([x for n in order for x, _ in gate[n]])
    return GateAnswers(model=model, rows=rows, result=result), h


@pytest.fixture
def before() -> GateAnswers:
    return answers(
        "ba",
        {"a": torch.ones(5), "b": torch.tensor([0, 1, 1, 1, 1])},
        likelihood={"a": torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])},
        confidence={"a": torch.tensor([0.95, 0.9, 0.89, 0.99, 0.99], dtype=torch.float64)},
    )[0]


def after(**options: Any) -> tuple[GateAnswers, Tensor]:
    given = {
        "hits": {"a": torch.tensor([1, 0, 0, 1, 0]), "b": torch.ones(5)},
        "likelihood": {"a": torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1])},
        "heaviest": {"a": torch.tensor([0, 2, 2, 2, 2])},
        **options,
    }
    return answers("acb", **given)


def test_each_number_of_what_a_newcomer_costs(before) -> None:
    now, h = after()
    found = excess_harm(before, now, [card(n) for n in "abc"], h)
    assert [*found] == ["a", "b"]
    a, b = found["a"], found["b"]
    assert a.fall == pytest.approx(3 / 5)
    assert a.reference == pytest.approx(1 / 5)  # the third row
    assert a.excess == pytest.approx(2 / 5)  # two of five: a variance of .24
    assert a.error == pytest.approx((0.24 / 5) ** 0.5)
    # Nearer to c: a's third row; nearer to a: all of c's gate rows.
    assert (a.overlap, a.blur) == pytest.approx((1 / 5 + 3 / 3, BLUR))
    # Sure, wrong now, and c has most weight: the second and the last.
    assert a.taken == pytest.approx(2 / 5)
    assert (a.mass, a.mass_error) == pytest.approx((0.7 - 0.3, 0), abs=1e-7)
    assert a.copied == pytest.approx(1 / 8) and a.claimed == 0
    assert (b.fall, b.reference, b.excess) == pytest.approx((-0.2, 0, -0.2))
    assert (b.overlap, b.taken, b.copied) == (0, 0, 0)
    assert b.blur == pytest.approx(((1 / 7) * (6 / 7) / 5 + (1 / 5) * (4 / 5) / 3) ** 0.5)
    assert b.mass == pytest.approx(0)
    now, h = after(likelihood={"a": torch.tensor([0.5, 0.4, 0.3, 0.2, 0.3])})
    a = excess_harm(before, now, [card(n) for n in "abc"], h)["a"]
    # Four of five fall by .4, one by .2: a standard deviation of .08.
    assert (a.mass, a.mass_error) == pytest.approx((0.36, 0.08 / 5**0.5))


def test_rows_without_labels_count_as_copied_whatever_they_are_called(before) -> None:
    now, h = after()
    c = card("c")
    shown = torch.tensor([(0.0, 0.0), (0.0, 10.5)])
    data = [card("a"), card("b"), dataclasses.replace(c, z=shown, labels=("a0", "a1"))]
    assert excess_harm(before, now, data, h)["a"].copied == pytest.approx(1 / 5)
    data[2] = dataclasses.replace(data[2], labels=())
    assert excess_harm(before, now, data, h)["a"].copied == pytest.approx(3 / 5)


def test_claimed_rows_and_further_numbers_change_no_reference(before, monkeypatch) -> None:
    now, h = after()
    plain = excess_harm(before, now, [card(n) for n in "abc"], h)
    flat = torch.tensor(POINTS["c"], dtype=torch.float64).repeat_interleave(4, 0)
    flat += torch.tensor([(3.0, 0.0), (-3.0, 0.0), (0.0, 0.1), (0.0, -0.1)]).repeat(2, 1)
    sums = Statistics.of_rows(flat, ["c0"] * 4 + ["c1"] * 4)
    few, many = (
        [card("a"), card("b"), dataclasses.replace(card("c"), statistics=sums.times(times))]
        for times in (1, 1000)
    )
    assert excess_harm(before, now, few, h) == excess_harm(before, now, many, h)
    monkeypatch.setattr(harm, "DENSE", 2)
    noise = torch.randn(len(h), 1, generator=torch.Generator().manual_seed(0))
    further = excess_harm(
        before, now, [card(n, width=3) for n in "abc"], torch.cat([h, 9 * noise], dim=1)
    )
    for domain, numbers in plain.items():
        assert (further[domain].reference, further[domain].overlap, further[domain].blur) == (
            pytest.approx((numbers.reference, numbers.overlap, numbers.blur))
        )


def test_sure_answers_that_the_reference_loses_are_not_taken(before) -> None:
    """All five were sure and go to c; the third one the cards confuse, whatever the answers are."""
    before.result.confidence[:] = 0.99
    now, h = after(hits={"a": torch.zeros(5)}, heaviest={"a": torch.full((5,), 2)})
    a = excess_harm(before, now, [card(n) for n in "abc"], h)["a"]
    assert (a.fall, a.reference, a.taken) == pytest.approx((1, 1 / 5, 4 / 5))


def test_of_a_newcomer_without_gate_rows_the_domains_count_twice(before) -> None:
    gate = {**GATE, "c": []}
    now, h = after(gate=gate)
    a = excess_harm(before, now, [card(n) for n in "abc"], h)["a"]
    assert (a.overlap, a.blur) == pytest.approx((2 / 5, 2 * ((2 / 7) * (5 / 7) / 5) ** 0.5))


def test_a_newcomer_that_chooses_its_gate_rows_hides_nothing(before) -> None:
    """Its own are separated, but three of five of the domain's are not."""
    gate = {**GATE, "a": [((3.0, 0.0), "a0")] * 3 + [((0.0, 0.0), "a0")] * 2}
    gate["c"] = [((4.0, 0.0), "c0")] * 3
    now, h = after(gate=gate)
    a = excess_harm(before, now, [card(n) for n in "abc"], h)["a"]
    assert (a.overlap, a.blur) == pytest.approx((6 / 5, 2 * ((4 / 7) * (3 / 7) / 5) ** 0.5))


def test_a_neighbour_in_the_midst_of_a_domain_does_not_overlap_it(before) -> None:
    """Between the points of a and c, but nearer to c's: no overlap, though all are close to a's."""
    gate = {**GATE, "a": [((0.5, 0.0), "a0")] * 5, "c": [((2.1, 0.0), "c0")] * 5}
    now, h = after(gate=gate)
    a = excess_harm(before, now, [card(n) for n in "abc"], h)["a"]
    assert (a.overlap, a.blur) == pytest.approx((0, (2 * (1 / 7) * (6 / 7) / 5) ** 0.5))
    gate = {**gate, "c": [((1.9, 0.0), "c0")] * 5}
    now, h = after(gate=gate)
    assert excess_harm(before, now, [card(n) for n in "abc"], h)["a"].overlap == pytest.approx(1)


@pytest.mark.parametrize(
    "likelihood", [None, {"a": torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])}], ids=["none", "one"]
)
def test_without_probabilities_there_is_no_mass(before, likelihood) -> None:
    now, h = after(likelihood=likelihood)
    data = [card(n) for n in "abc"]
    if likelihood is not None:
        now.result.calibration.likelihood = None
    assert excess_harm(before, now, data, h)["a"].mass == pytest.approx(0.7)


def test_an_update_is_a_newcomer_to_others_and_excused_nothing(before) -> None:
    """First c changes, a member as a and b are; then b changes, and c joins."""
    data = [card(n) for n in "abc"]
    first, _ = answers("bac", {}, digests={"a": "1", "b": "1", "c": "1"})
    now, h = after(digests={"a": "1", "b": "1", "c": "2"})
    found = excess_harm(first, now, data, h)
    assert [*found] == ["a", "b"] and updated_members(first.model, now.model) == ("c",)
    assert (found["a"].reference, found["a"].excess, found["a"].error) == pytest.approx((0, 0.6, 0))
    assert found["a"].taken == 0  # nothing was sure before
    now, h = after(digests={"a": "1", "b": "2", "c": "1"})
    found = excess_harm(before, now, data, h)
    assert [*found] == ["a", "b"] and updated_members(before.model, now.model) == ("b",)
    assert found["a"].error == pytest.approx((0.24 / 5) ** 0.5)
    # The most of any: c's overlap, though b's rows are none of a's.
    assert found["a"].overlap == pytest.approx(1.2)
    # Other gate rows than before are not compared.
    gate = {**GATE, "b": GATE["b"][:4]}
    now, h = after(digests={"a": "1", "b": "2", "c": "1"}, gate=gate, hits={})
    assert [*excess_harm(before, now, data, h)] == ["a"]


def test_without_members_newcomers_or_labels_nothing_is_measured(before) -> None:
    now, h = after()
    data = [card(n) for n in "abc"]
    assert excess_harm(now, now, data, h) == {}
    others, _ = answers("b", {}, ids=("other",))
    assert excess_harm(others, now, data, h) == {}
    now, h = after(task=SimpleNamespace(one_label=False))
    assert excess_harm(before, now, data, h) == {}


class Sharing(Router):
    """A router that has learnt given shares of all rows."""

    def learnt_shares(self, columns: Sequence[ColumnData]) -> Tensor:
        shares = {"a": 0.2, "b": 0.3, "c": 0.5}
        return torch.tensor([shares[d.column] for d in columns], dtype=torch.float64)


ALPHA = torch.tensor(
    [(0.35, 0.15, 0.5), (0.47, 0.03, 0.5), (0.1, 0.1, 0.8), (0.9, 0.1, 0.0), (0.9, 0.1, 0.0)]
)


def sharing(**options: Any) -> tuple[GateAnswers, Tensor]:
    """Five rows of a's, with these weights on columns that answer a0, b0 and c0."""
    router = Sharing(width=2, columns=("a", "b", "c"))
    router.log_prior = options.pop("log_prior", None)
    points = torch.tensor([x for x, _ in GATE["a"]]).tolist()
    alpha = {tuple(x): weights for x, weights in zip(points, ALPHA, strict=True)}

    def weights(z: Tensor) -> Tensor:
        return torch.stack([alpha.get(tuple(x), ALPHA[2]) for x in z.tolist()])

    def answer(h: Tensor, z: Tensor, alpha: Tensor) -> Tensor:
        torch.testing.assert_close(alpha.sum(-1), torch.ones(len(alpha)))
        return alpha

    return after(
        router=router,
        answers=NUMBERS // 12,  # four rows at a time
        labels=("a0", "b0", "c0"),
        weights=weights,
        answer=answer,
        hits={"a": torch.tensor([0, 0, 0, 1, 1])},
        **options,
    )


def test_rows_that_fewer_claimed_rows_would_give_back(before) -> None:
    """c's share falls to the largest member's, .3: its weights shrink to three fifths."""
    data = [card(n) for n in "abc"]
    gate = {**GATE, "a": [(x, "a0") for x, _ in GATE["a"]]}
    now, h = sharing(gate=gate)
    assert excess_harm(before, now, data, h)["a"].claimed == pytest.approx(2 / 5)
    now, h = sharing(gate=gate, log_prior=torch.zeros(3))
    assert excess_harm(before, now, data, h)["a"].claimed == 0


@pytest.mark.parametrize(
    ("old", "claimed"),
    [
        # Nine tenths as many rows before: .45 of .5, which gives back the second row alone.
        (Card(column="c", kind="statistics", statistics=card("c").statistics.times(0.9)), 1 / 5),
        (Card(column="c", kind="statistics", statistics=card("c").statistics.times(2)), 0),
        (Card(column="c", kind="vectors", labels=("c0",) * 8), 0),
        (Card(column="c", kind="vectors", labels=("c0",) * 2), 2 / 5),
        (
            Card(
                column="c",
                kind="texts",
                rows=tuple(CardRow(text="", label="c0", part=p) for p in ["fit"] * 8 + ["gate"]),
            ),
            0,
        ),
        (
            Card(
                column="c",
                kind="texts",
                rows=tuple(CardRow(text="", label="c0", part=p) for p in ["fit"] + ["gate"] * 8),
            ),
            2 / 5,
        ),
    ],
)
def test_an_update_may_claim_as_many_rows_as_it_had(old, claimed) -> None:
    data = [card(n) for n in "abc"]
    gate = {**GATE, "a": [(x, "a0") for x, _ in GATE["a"]]}
    first, _ = answers("bac", {}, gate=gate)
    cards: Any = first.model.cards
    cards["c"] = old
    now, h = sharing(gate=gate, digests={"a": "1", "b": "1", "c": "2"})
    assert excess_harm(first, now, data, h)["a"].claimed == pytest.approx(claimed)
