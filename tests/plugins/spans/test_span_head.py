"""Spans read from what is put out for the words of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from redhost_spans.span_head import SpanHead, best_runs, gate_words

import redhost
from redhost.plugins import make_task
from redhost.registry.package.manifest import SpanRule

TEXT = "Ada Lovelace met Babbage"
PLACES = [(0, 3), (4, 12), (13, 16), (17, 24)]
LABELS = ("family", "person")


def test_a_span_is_the_longest_run_of_words_that_have_its_label() -> None:
    head = SpanHead().with_thresholds({"person": 0.4})
    p = torch.tensor([[0.1, 0.9], [0.8, 0.45], [0.0, 0.1], [0.5, 0.6]])
    found = head.spans(p, LABELS, text=TEXT, places=PLACES)
    assert [(s.start, s.end, s.label, s.text) for s in found] == [
        (0, 12, "person", "Ada Lovelace"),
        (4, 12, "family", "Lovelace"),
        (17, 24, "family", "Babbage"),
        (17, 24, "person", "Babbage"),
    ]
    assert [round(s.probability, 3) for s in found] == [0.675, 0.8, 0.5, 0.6]


@given(
    score=st.lists(st.integers(-3, 3), min_size=1, max_size=9),
    least=st.integers(-1, 1),
    cost=st.integers(0, 4),
)
def test_runs_are_those_of_the_largest_sum_less_what_each_costs(score, least, cost) -> None:
    def worth(inside: Sequence[bool]) -> int:
        begins = sum(b and not a for a, b in pairwise((False, *inside)))
        return sum(x - least for x, i in zip(score, inside, strict=True) if i) - cost * begins

    found = best_runs(score, least, cost)
    chosen = [any(a <= n <= b for a, b in found) for n in range(len(score))]
    assert worth(chosen) == max(map(worth, product((False, True), repeat=len(score))))
    assert all(second[0] - first[1] > 1 for first, second in pairwise(found))
    if not cost:  # the longest runs of what reaches the least
        assert chosen == [x >= least for x in score]


def test_a_cost_fills_a_gap_and_leaves_out_what_stands_alone() -> None:
    p = torch.tensor([[0.9], [0.3], [0.9], [0.1], [0.1], [0.6]])
    places = [(2 * n, 2 * n + 1) for n in range(6)]
    for cost, spans in ((0.0, [(0, 1), (4, 5), (10, 11)]), (2.0, [(0, 5)]), (9.0, [])):
        rule = SpanRule(threshold=0.5, cost=cost)
        head = replace(SpanHead(), rules={"a": rule})
        found = head.spans(p, ["a"], text="a b c d e f", places=places)
        assert [(s.start, s.end) for s in found] == spans


def test_rules_are_fitted_to_exact_spans_text_by_text() -> None:
    # Words in the middle of a span are known no better than by .3, and single words lie.
    texts = [[0.9, 0.3, 0.9, 0.05, 0.6, 0.05], [0.05, 0.6, 0.05, 0.9, 0.3, 0.9]] * 40
    marks = [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]] * 40
    p = torch.tensor(texts).reshape(-1, 1)
    [rule] = SpanHead().fit_rules(p, torch.tensor(marks).reshape(-1, 1), [6] * 80)
    head = replace(SpanHead(), rules={"a": rule})
    places = [(n, n + 1) for n in range(6)]
    for text, mark in zip(texts, marks, strict=True):
        [span] = head.spans(torch.tensor(text)[:, None], ["a"], text="abcdef", places=places)
        assert mark[span.start : span.end] == [1, 1, 1] and span.end - span.start == 3
    # As one text the last span of each and the first of the next would touch.
    assert rule.cost > 0


def test_a_label_of_several_experts_is_read_by_their_mean_rule() -> None:
    experts = [saying(b, c) for b, c in ((0.2, 1.0), (0.4, 3.0))]
    head = SpanHead().fitted_by(experts)
    assert isinstance(head, SpanHead) and head.thresholds == pytest.approx({"a": 0.3})
    assert head.rules["a"].threshold == pytest.approx(0.3) and head.rules["a"].cost == 2.0


def saying(threshold: float, cost: float) -> redhost.Expert:
    expert = redhost.Expert(space="labels", labels=["a"])
    expert.thresholds = (threshold,)
    expert.rules = (SpanRule(threshold=threshold, cost=cost),)
    return expert


def test_without_a_word_above_its_threshold_there_is_none() -> None:
    assert SpanHead().spans(torch.full((4, 2), 0.49), LABELS, text=TEXT, places=PLACES) == []


def test_labels_are_those_of_spans_and_of_words_alike() -> None:
    head = make_task("spans").head
    assert head.labels_in(["0:3:person|4:12:family", "person", "none"]) == {"person", "family"}
    assert head.groups(["0:3:person|4:12:family", "none"]) == ("person", "none")
    assert head.targets(["person", "none", "family|person"], LABELS).tolist() == [
        [0, 1],
        [0, 0],
        [1, 1],
    ]
    assert head.expected("0:3:person") is None and head.expected("none") is None
    assert head.expected("person") is not None


def test_who_does_not_have_a_label_does_not_find_it() -> None:
    p, known = torch.tensor([[0.3, 0.2]]), torch.tensor([[0.3, 1.0]])
    assert torch.equal(SpanHead().mixed(p, known), p)


def test_as_many_words_without_a_label_count_as_with_one() -> None:
    words = ["none"] * 10 + ["person"] + ["none"] * 9 + ["family|person"]
    chosen = gate_words(words)
    assert {10, 20} <= {*chosen.tolist()} and chosen.tolist() == sorted(chosen.tolist())
    assert 2 <= sum(words[n] == "none" for n in chosen) <= 4
    assert gate_words(["none"] * 3).tolist() == [0]
