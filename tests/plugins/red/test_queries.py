"""The protocols of `redhost lab red` keep what they promise."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from red_lab.arithmetic import SPLITS, Pair, Split, pairs_in
from red_lab.red.experts import NAMES
from red_lab.red.queries import LABELS, RULE, Data, Protocol, Query, Task, boundary, cells, load
from red_lab.red.summary import seen

RUNS = Path(__file__).parents[3] / "docs" / "results" / "red"


@cache
def drawn(task: Task, protocol: Protocol, seed: int, stratified: bool) -> Data:
    """Draw questions once for all tests of this file."""
    return load(task, protocol, seed=seed, stratified=stratified)


def held_out(task: Task, *, seed: int) -> Data:
    return drawn(task, "held-out", seed, False)


def pairs_of(query: Query) -> Iterable[Pair]:
    """What a question of one operator adds up, or undoes; nothing of longer ones."""
    return pairs_in(query.text) if len(re.findall("plus|minus", query.text)) == 1 else ()


def test_the_seeds_protocol_tests_what_was_trained_on() -> None:
    data = load("addition", "seed", seed=0)
    assert [len(p) for p in (data.train, data.valid, data.test)] == [20_000, 2_500, 2_500]
    known = {q.text for q in data.train}
    assert sum(q.text in known for q in data.test) / 2_500 > 0.999
    assert load("addition", "seed", seed=0) == data != load("addition", "seed", seed=1)


@pytest.mark.parametrize("task", ["addition", "mixed"])
def test_held_out_questions_and_their_rearrangements_are_on_one_side(task) -> None:
    data = held_out(task, seed=1)
    sides = [{q.cluster for q in p} for p in (data.train, data.valid, data.test)]
    assert all(sides) and not sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2]
    assert set(LABELS) == {q.label for q in data.train} if task == "addition" else True


@pytest.mark.parametrize("number", range(SPLITS))
def test_both_tasks_and_the_corpus_keep_to_one_split(number) -> None:
    """What a question of one operator adds up is tested everywhere or nowhere."""
    split = Split.numbered(number)
    tested: set[tuple[int, ...]] = set()
    for task in get_args(Task):
        data = held_out(task, seed=number)
        trained = {p for q in {*data.train, *data.valid} for p in pairs_of(q)}
        assert trained and not any(map(split.holds_out, trained))
        tried = {p for q in data.test for p in pairs_of(q)}
        assert all(map(split.holds_out, tried))
        tested |= tried
    assert tested == {*split.test_pairs()}


@pytest.mark.parametrize("task", get_args(Task))
def test_no_held_out_question_was_read_in_pretraining(task) -> None:
    """The corpus of every split is replayed, as the language model has read it."""
    shares = seen("tiny", [held_out(task, seed=n) for n in range(SPLITS)])
    assert shares == {"training": 0.0, "rearranged": 0.0, "pretraining": 0.0}


def test_rearrangements_of_a_mixed_question_are_one_cluster() -> None:
    found = {q.text: q.cluster for group in cells().values() for q in group}
    assert found["What is 12 plus 8 minus 3?"] == found["What is 12 minus 3 plus 8?"]
    assert found["What is 45 minus 17?"] != found["What is 17 plus 45?"]


def test_the_cells_of_the_mixed_task_are_as_counted_and_some_are_empty() -> None:
    counts = {k: len(v) for k, v in cells().items()}
    assert [counts.get(("-", n), 0) for n in NAMES] == [741, 390, 45, 0, 0]
    assert [counts[("+", n)] for n in NAMES] == [190, 590, 900, 610, 210]


def test_stratified_draws_ask_every_range_equally_often() -> None:
    counts = Counter(q.domain for q in load("addition", "seed", seed=0, stratified=True).train)
    assert all(abs(n / 20_000 - 0.2) < 0.02 for n in counts.values())


def test_boundary_sums_lie_within_two_of_a_border() -> None:
    at = [n for n in range(2, 101) if boundary(Query("", str(n), "", ""))]
    assert at == [19, 20, 21, 22, 39, 40, 41, 42, 59, 60, 61, 62, 79, 80, 81, 82]


def test_what_was_read_before_is_counted() -> None:
    """What the language model read is replayed, example by example."""
    datasets = [load("mixed", "seed", seed=0)]
    shares = seen("tiny", datasets)
    training, rearranged, read = (shares[n] or 0 for n in ("training", "rearranged", "pretraining"))
    assert 0.3 < training < 0.4 < rearranged < 0.6
    assert 0.1 < read < 0.3
    assert seen("smollm2", datasets) == {**shares, "pretraining": None}


@pytest.mark.parametrize("run", sorted(p.name for p in RUNS.iterdir() if p.is_dir()))
def test_pages_say_what_was_seen(run) -> None:
    """Questions are drawn and replayed again; those of an earlier rule cannot be, and say so."""
    metrics = json.loads((RUNS / run / "metrics.json").read_text("utf-8"))
    plan = metrics["plan"]
    if metrics.get("split_rule") not in (None, RULE):
        page = (RUNS / run / "README.md").read_text("utf-8")
        assert f"split by rule {metrics['split_rule']}" in page
        return
    datasets = [
        drawn(plan["task"], plan["protocol"], n, plan["stratified"]) for n in range(plan["seeds"])
    ]
    assert sum(len(d.test) for d in datasets) == metrics["rows"]
    assert len(datasets[0].texts()) == metrics["distinct"]
    assert seen(plan["backbone"], datasets) == metrics["seen"]
