"""Several answers a text: whose rows are read where, and a whole study on small ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from red_lab.several import corpora, run
from red_lab.several.corpora import FACETS, STUDIES, Study, union

import redhost
from redhost.core.types import BackgroundRow

ROOT = Path(__file__).parents[2]


def test_every_study_is_reported_on_test_rows() -> None:
    folder = ROOT / "docs" / "results" / "several"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert metrics.keys() == STUDIES.keys() and not any(m["validation"] for m in metrics.values())


def packages(number: int) -> str:
    """Two packages of one source, one of them with tags of two teams, and one that has no tags."""
    return (
        f"Package: a{number}\nDescription: program {number}\n more of it\n"
        f"Tag: implemented-in::c, interface::x11,\n works-with::audio, role::program\n\n"
        f"Package: b{number}\nSource: a{number} (1.0)\nDescription: library {number}\n"
        f"Tag: implemented-in::c\n\n"
        f"Package: c{number}\nDescription: nothing {number}\n\n"
        f"Package: d{number}\nDescription: sounds {number}\nTag: role::data\n\n"
    )


@pytest.fixture
def index(tmp_path, monkeypatch) -> Iterator[None]:
    """An index of packages, as `apt-cache` prints it."""
    (tmp_path / "index").write_text("".join(map(packages, range(200))))
    command = tmp_path / "apt-cache"
    command.write_text(f"#!/bin/sh\ntest $1 = dumpavail && cat {tmp_path}/index\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    corpora.read_index.cache_clear()
    yield
    corpora.read_index.cache_clear()


def test_a_team_has_its_own_tags_and_no_source_is_learnt_from_and_tested(index) -> None:
    study = STUDIES["tags"]
    learn, test = study.rows("train", False), study.rows("test", False)
    for row in learn:
        assert all(re.fullmatch(FACETS[str(row.domain)], y) for y in row.label.split("|"))
    assert {r.domain for r in learn} == {"interfaces", "languages", "media"}
    labels = {r.text.split()[0]: r.label for r in test}
    every = "implemented-in::c|interface::x11|works-with::audio"
    assert labels == {"program": every, "library": "implemented-in::c"}
    assert {r.text.split()[0]: r.label for r in union(learn)} == labels
    numbers = [{r.text.split()[1] for r in rows} for rows in (learn, test)]
    assert numbers[0].isdisjoint(numbers[1]) and len(numbers[0] | numbers[1]) == 200
    other = {r.text.split()[1] for r in study.rows("test", True)}
    assert other < numbers[0]  # what validation judges on is no test row
    assert other.isdisjoint(r.text.split()[1] for r in study.rows("train", True))
    assert {r.text.split()[0] for r in study.background()} == {"sounds"}
    assert study.clusters(test)[0].startswith("a")


def test_a_team_that_draws_its_texts_has_them_without_its_tags_too(index) -> None:
    study = STUDIES["drawn"]
    learn, test = study.rows("train", False), study.rows("test", False)
    assert len({r.text for r in learn}) == len(learn)  # each text is one team's
    assert {r.domain for r in learn} == {*FACETS}
    for row in learn:
        own = [y for y in row.label.split("|") if re.fullmatch(FACETS[str(row.domain)], y)]
        assert row.label == ("|".join(own) or "none")
    assert {r.label for r in learn if r.domain == "fields"} == {"none"}
    assert study.complete is not None
    every = "implemented-in::c|interface::x11|works-with::audio"
    assert {r.text: r.label for r in study.complete(False)} == {
        r.text: {"program": every, "library": "implemented-in::c"}.get(r.text.split()[0], "none")
        for r in learn
    }
    known = {"program", "library", "sounds"}  # the last has no tag
    assert {r.text.split()[0] for r in test} == {r.text.split()[0] for r in learn} == known


def test_without_an_index_one_line_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    corpora.read_index.cache_clear()
    with pytest.raises(redhost.MissingError, match="apt-get update"):
        STUDIES["tags"].rows("train", False)


def test_rules_mark_spans_and_held_countries_are_learnt_by_nobody(monkeypatch) -> None:
    countries = corpora.COUNTRY.split("|")
    wires = [f"trade of {c} fell by two mln dlrs {n}" for n, c in enumerate(countries)]
    posts = [f"in article abc someone {n} writes that he isn t {n}" for n in range(20)]

    def rows(team: str, texts: list[str]) -> SimpleNamespace:
        made = [redhost.Row(text=t, label="x", domain=team) for t in texts]
        return SimpleNamespace(rows=lambda part, validation: made)

    texts = {"newswire": rows("economy", wires), "newsgroups": rows("science", posts)}
    monkeypatch.setattr(corpora, "CORPORA", texts)
    study = STUDIES["spans"]
    assert study.unseen is not None
    learn, test = study.rows("train", False), study.rows("test", False)
    named = {r.text.split()[2] for r in learn if r.domain == "newswire"}
    unseen = {r.text.split()[2] for r in test if study.unseen(r)}
    assert named | unseen == {*countries} and named.isdisjoint(unseen) and len(unseen) > 10
    found = {
        (r.text[int(a) : int(b)], y)
        for r in test
        for a, b, y in (part.split(":") for part in r.label.split("|"))
        if r.text.endswith(" 0") or r.text.endswith(" 5")
    }
    assert found == {
        ("argentina", "country"),
        ("belgium", "country"),
        ("two mln dlrs", "amount"),
        ("in article abc someone 0 writes", "attribution"),
        ("in article abc someone 5 writes", "attribution"),
        ("isn t", "contraction"),
    }


def test_f1_counts_texts_and_labels_together() -> None:
    scores = run.score(["a|b", "none", "c"], [["a", "c", "c"]], ["1", "2", "3"])
    assert scores["f1"]["mean"] == pytest.approx(2 * 2 / (3 + 3))
    assert scores["whole"]["mean"] == pytest.approx(1 / 3)
    assert scores["f1"]["low"] < scores["f1"]["mean"] < scores["f1"]["high"]
    assert run.score(["a"], [["none"]], ["1"])["f1"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


WORDS = {"left": {"sum": "one", "sign": "two"}, "right": {"code": "zip", "place": "here"}}
"""Team → label → the word that has it."""


def marked(team: str, n: int) -> redhost.Row:
    label = sorted(WORDS[team])[n % 2]
    word = WORDS[team][label] if n % 5 else "yy"
    text = f"{team} {'x ' * (n % 3)}{word} yy {n}"
    start = text.index(word)
    spans = f"{start}:{start + len(word)}:{label}" if n % 5 else "none"
    return redhost.Row(text=text, label=spans, domain=team)


def tagged(team: str, n: int) -> redhost.Row:
    row = marked(team, n)
    return replace_label(row, row.label.rpartition(":")[2])


def replace_label(row: redhost.Row, label: str) -> redhost.Row:
    return redhost.Row(text=row.text, label=label, domain=row.domain)


@pytest.mark.parametrize(("name", "make"), [("tags", tagged), ("spans", marked)])
def test_a_study_has_the_rows_that_could_embarrass_it(
    name, make, make_word_reader, tmp_path, monkeypatch
) -> None:
    def rows(part: str, validation: bool) -> list[redhost.Row]:
        numbers = range(160) if part == "train" else range(700, 740)
        return [make(team, n) for team in WORDS for n in numbers]

    small = Study(
        title="Small",
        task=STUDIES[name].task,
        teams=tuple(WORDS),
        rows=rows,
        clusters=lambda rows: [r.text for r in rows],
        background=lambda: [BackgroundRow(text=f"x {n}") for n in range(20)],
        complete=(lambda validation: rows("train", validation)) if name == "tags" else None,
        unseen=None if name == "tags" else lambda row: "zip" in row.text,
    )
    words = ("left", "right", "x", "yy", "one", "two", "zip", "here")
    model = make_word_reader(tmp_path / "model", *words)
    monkeypatch.setattr(run, "STUDIES", {name: small})
    monkeypatch.setattr(run, "encoder", lambda: model)
    if find_spec("sklearn") is None:  # it is no developer's tool
        monkeypatch.setattr(run, "regression", lambda desk, _: [r.label for r in desk.test])

    def once() -> str:
        run.run([name], seeds=[0], validation=True, out=tmp_path / "out", work=tmp_path / "work")
        return (tmp_path / "out" / "metrics.json").read_text("utf-8")

    first = once()
    metrics = json.loads(first)[name]
    f1 = {system: x["f1"]["mean"] for system, x in metrics["systems"].items()}
    left_out = set() if name == "tags" else {"complete"}
    assert (
        f1.keys() == run.TITLES.keys() - left_out
        and metrics["rows"] == 80
        and metrics["labels"] == 4
    )
    assert f1["nothing"] == 0 and f1["random"] < f1["routed"] and f1["regression"] > 0.5
    assert f1["routed"] > 0.8 and f1["everybody"] > 0.8
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert {
        n for n, title in run.TITLES.items() if title not in page
    } == left_out and "held-out training rows" in page
    assert ("unseen country" in page) == (name == "spans")
    (tmp_path / "out" / "metrics.json").unlink()
    monkeypatch.setattr(run, "measure", lambda *_, **__: pytest.fail("measured twice"))
    assert once() == first
