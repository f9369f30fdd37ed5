"""The test that ends a canary: its false alarms are as rare as it says, however often one looks."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from redhost_fleet.documents import Comparison
from redhost_fleet.evidence import (
    BETS,
    evidence_of_declining,
    evidence_of_harm,
    evidence_of_no_harm,
    harm_of,
)
from redhost_fleet.rollout import Limits, decide

import redhost


def counts(better: int, worse: int, same: int = 0) -> Comparison:
    return Comparison(better=better, worse=worse, same=same)


def test_evidence_is_the_mean_of_what_each_bet_wins() -> None:
    differences = [-1, -1, 1, 0, -1]
    wealth = [math.prod(1 - bet * d for d in differences) for bet in BETS]
    assert harm_of(counts(1, 3, 1)) == pytest.approx(math.log(sum(wealth) / len(wealth)))
    margin = 0.05
    stakes = [bet / (1 - margin) for bet in BETS]
    wealth = [math.prod(1 + s * (d + margin) for d in differences) for s in stakes]
    assert evidence_of_no_harm({"a": counts(1, 3, 1)}, margin=margin) == pytest.approx(
        math.log(sum(wealth) / len(wealth))
    )


def test_no_bet_can_be_expected_to_win_while_the_hypothesis_holds() -> None:
    for better, worse in itertools.product((0.0, 0.02, 0.1), repeat=2):
        same = 1 - better - worse
        for bet in BETS:
            if worse <= better:
                assert worse * (1 + bet) + better * (1 - bet) + same <= 1 + 1e-12
            stake = bet / (1 - 0.01)
            if better - worse <= -0.01:
                expected = (
                    worse * (1 - stake * 0.99)
                    + better * (1 + stake * 1.01)
                    + same * (1 + stake / 100)
                )
                assert expected <= 1 + 1e-12


def declining(more: int, less: int, texts: int) -> Comparison:
    return Comparison(texts=texts, only_canary_declined=more, only_declined=less)


def test_bets_on_declining_are_of_what_one_alone_declines() -> None:
    margin, differences = 0.05, [1, 1, -1, 0, 0, 0]
    stakes = [bet / (1 + margin) for bet in BETS]
    wealth = [math.prod(1 + s * (c - margin) for c in differences) for s in stakes]
    found = evidence_of_declining({"a": declining(2, 1, 6)}, margin=margin)
    assert found == pytest.approx(math.log(sum(wealth) / len(wealth)))
    for more, less in ((0.05, 0.0), (0.15, 0.1), (0.0, 0.0)):  # no bet gains where C is at most δ
        for s in stakes:
            gains = more * (1 + s * (1 - margin)) + less * (1 - s * (1 + margin))
            assert gains + (1 - more - less) * (1 - s * margin) <= 1 + 1e-12


def test_a_canary_that_declines_much_more_waits_for_people() -> None:
    good = counts(30, 20, 2000)
    some = {"a": good + declining(60, 20, 2000)}
    many = {"a": good + declining(300, 20, 2000)}
    assert decide(some, experts=1).action == "promote"
    assert decide(many, experts=1).action == "hold"
    assert decide(many, Limits(declines=0.3), experts=1).action == "promote"


def test_an_expert_whose_first_text_comes_late_moves_no_evidence() -> None:
    """Its stake lay untouched: otherwise one could wait for it to make up for what was lost."""
    lost = {"a": counts(40, 2)}
    before = evidence_of_harm(lost, experts=3)
    assert evidence_of_harm({**lost, "b": counts(0, 0, 1)}, experts=3) == pytest.approx(before)


def test_without_texts_there_is_no_evidence() -> None:
    assert evidence_of_harm({}, experts=3) == pytest.approx(0)
    assert evidence_of_no_harm({}, margin=0.01) == pytest.approx(0)
    assert decide({}, experts=3).action == "hold"


def test_harm_to_one_experts_texts_shows_though_others_gain() -> None:
    spread = {"a": counts(30, 0, 470), "b": counts(0, 25, 475)}
    assert decide(spread, experts=2).action == "end"
    assert "texts of b" in decide(spread, experts=2).why
    assert harm_of(counts(30, 25, 945)) < math.log(100)


def test_a_canary_that_is_as_good_is_promoted_and_one_that_is_worse_never() -> None:
    assert decide({"a": counts(20, 20, 60)}, experts=1).action == "hold"
    assert decide({"a": counts(30, 20, 2000)}, experts=1).action == "promote"
    assert decide({"a": counts(5, 60, 2000)}, experts=1).action == "end"


def test_of_a_thousand_healthy_rollouts_at_most_one_in_a_hundred_ends() -> None:
    draw, ended = random.Random(11), 0
    for _ in range(1000):
        found = {k: [0, 0] for k in "abc"}
        for n in range(400):
            if draw.random() < 0.2:  # only these move the evidence
                found[draw.choice("abc")][draw.random() < 0.5] += 1
                if n % 5 == 0:
                    some = {k: counts(b, w) for k, (b, w) in found.items()}
                    if evidence_of_harm(some, experts=3) >= math.log(100):
                        ended += 1
                        break
    assert ended <= 10


@pytest.mark.parametrize("name", ["alarm", "miss", "margin"])
@pytest.mark.parametrize("value", [0, 1, -0.1, math.nan])
def test_a_share_is_between_0_and_1(name: str, value: float) -> None:
    with pytest.raises(redhost.UsageError, match=name):
        Limits(**{name: value})
