"""Spans read from what is put out for the words of a text."""

from __future__ import annotations

import torch

from redhost.core.bus.span_head import SpanHead, gate_words
from redhost.plugins import make_task

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
    assert [round(s.probability, 3) for s in found] == [0.45, 0.8, 0.5, 0.6]


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
