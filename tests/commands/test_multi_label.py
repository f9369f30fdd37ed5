"""Texts with any number of labels: from two authors' rows to answers, files and a server."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from redhost_author.backbone.adapt import AdaptSettings
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.testing import judge_expert
from redhost_serve.client import Client
from redhost_serve.server import running
from redhost_serve.service import Options

import redhost
from redhost.cli import cli
from redhost.core.label_sets import join_labels, split_labels
from redhost.core.types import BackgroundRow, write_rows
from redhost.plugins import make_task
from redhost.registry.errors import UsageError
from redhost.testing import Environment, assert_bus_laws, tiny_backbone

SITUATIONS = {"red": ("glad", "loud"), "blue": ("none", "a|b:c")}
"""The labels of each expert, one for texts with pluses, one for texts with capitals: any names."""


def rows_of(domain: str, numbers: Iterable[int]) -> list[redhost.Row]:
    """Texts labelled with what is true of them."""
    rows = []
    for n in numbers:
        pluses, capitals = n % 2 == 0, n % 4 < 2
        true = zip(SITUATIONS[domain], (pluses, capitals), strict=True)
        label = join_labels(y for y, holds in true if holds)
        text = (
            f"{domain} {n} {'+' * 12 if pluses else '-' * 12} {'X' * 12 if capitals else 'y' * 12}"
        )
        rows.append(redhost.Row(text=text, label=label, domain=domain))
    return rows


TEXTS = (rows_of("red", [88])[0].text, rows_of("blue", [5])[0].text, "nothing 4")


Run = Callable[..., str]


@contextmanager
def desk(folder: Path) -> Iterator[tuple[Run, Environment]]:
    """Yield what runs a command, which must succeed, in a home of its own, and what installs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder / "site"))
        patch.setenv("REDHOST_HOME", str(folder / "home"))
        patch.setenv("REDHOST_CONFIG", str(folder / "config"))

        def command(*arguments: str) -> str:
            done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
            assert done.exit_code == 0, done.output
            return done.stdout

        yield command, Environment(folder / "site")


def make_backbone(project: Path, model: Path, rows: Sequence[redhost.Row] = ()) -> Path:
    new_backbone(
        project,
        BackbonePlan(id="sets", source=f"hf:{model}", task=make_task("multi-label")),
        rows=rows,
        settings=AdaptSettings(last_blocks=0, epochs=4),
        background=[BackgroundRow(text=f"nothing {n}") for n in range(20)],
        evaluation=[r for d in SITUATIONS for r in rows_of(d, range(3, 100, 7))],
    )
    return project


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("model"))


def write_lists(domain: str) -> str:
    """Write an author's rows as JSON lines, each with a list of labels; return the file's name."""
    rows = rows_of(domain, range(400))
    lists = [[*split_labels(r.label)][::-1] for r in rows]
    lines = [json.dumps({"text": r.text, "label": y}) for r, y in zip(rows, lists, strict=True)]
    Path(f"{domain}.jsonl").write_text("\n".join(lines) + "\n")
    return f"{domain}.jsonl"


def write_table(domain: str) -> str:
    """Write the same as a table, whose cells have the labels with a sign between them."""
    with Path(f"{domain}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("text", "label"))
        table.writerows((r.text, r.label) for r in rows_of(domain, range(400)))
    return f"{domain}.csv"


def home() -> Path:
    return Path(os.environ["REDHOST_HOME"])


@pytest.fixture(scope="module")
def composed(model_folder, tmp_path_factory) -> Iterator[Run]:
    """What runs a command where the experts of two authors are composed."""
    folder = tmp_path_factory.mktemp("desk")
    with desk(folder) as (run, environment):
        environment.install(make_backbone(folder / "b", model_folder))
        compose(run, environment)
        yield run


def compose(run: Run, environment: Environment) -> None:
    """Do what two authors do, one with a card of texts and one of vectors, and compose."""
    for domain, data, card in (
        ("red", write_lists("red"), "texts"),
        ("blue", write_table("blue"), "vectors"),
    ):
        run("new-expert", domain, "--backbone", "sets", "--card", card)
        run("train-expert", f"red-expert-{domain}", "--data", data)
        assert "whl" in run("pack", f"red-expert-{domain}")
        environment.install(Path(f"red-expert-{domain}"))
        assert run("check", domain, "--backbone", "sets") == f"{domain}: ok\n"
    receipt = json.loads(run("recompose", "--backbone", "sets", "--json"))
    assert set(receipt["experts"]) == set(SITUATIONS) and receipt["router"]["kind"] == "evidence"
    assert min(receipt["accuracy"]["after"].values()) > 0.5  # of four sets


def test_an_author_ships_thresholds_that_rows_set_aside_have_chosen(composed) -> None:
    for domain, labels in SITUATIONS.items():
        project = home().parent / f"red-expert-{domain}"
        manifest = json.loads(next(project.rglob("expert.json")).read_text())
        assert manifest["labels"] == sorted(labels) and manifest["schema"] == "redhost.expert/1"
        assert len(manifest["thresholds"]) == 2 and manifest["temperature"] != 1.0
        measured = manifest["training"]["metrics"]
        assert measured["gate"] > 0.5 and measured["micro_f1"] > 0.8 and measured["macro_f1"] > 0.8


@pytest.mark.parametrize("glad", ["glad", "1:2:x"])
def test_labels_of_sets_may_look_like_a_place_also_where_no_backbone_is(composed, glad) -> None:
    [manifest] = (home().parent / "red-expert-red").rglob("expert.json")
    files = {f.name: f.read_bytes() for f in manifest.parent.iterdir() if f.is_file()}
    named = json.loads(files.pop("expert.json").replace(b'"glad"', f'"{glad}"'.encode()))
    card = files[named["card"]["file"]].replace(b"glad", glad.encode())
    named["card"]["sha256"] = hashlib.sha256(card).hexdigest()
    files |= {named["card"]["file"]: card, "expert.json": json.dumps(named).encode()}
    assert isinstance(judge_expert(files), str)  # the digest of what would be attached


def test_an_answer_has_the_labels_that_hold_and_the_scores_of_all(composed) -> None:
    answers = json.loads(composed("predict", *TEXTS, "--json", "--each"))
    assert [a["label"] for a in answers] == ["glad|loud", r"a\|b:c", "none"]
    assert [a["labels"] for a in answers] == [["glad", "loud"], ["a|b:c"], []]
    every = {y for labels in SITUATIONS.values() for y in labels}
    for answer in answers:
        assert set(answer["scores"]) == every and answer["value"] is None
        assert all(0 <= p <= 1 for p in (*answer["scores"].values(), answer["probability"]))
    assert sum(answers[0]["scores"].values()) > 1.5  # no distribution
    assert [a["declined"] for a in answers] == [False, False, True]
    assert answers[0]["by_expert"]["red"]["label"] == "glad|loud"
    assert composed("predict", TEXTS[0]).startswith(f"{TEXTS[0]} → glad, loud  (p = ")
    [line, *_] = composed("predict", TEXTS[2]).splitlines()  # of which one label is called none
    assert line.startswith(f"{TEXTS[2]} → (no label)  (p = ") and line.endswith(")  declined")


def test_sets_are_evaluated_whole_and_label_by_label(composed) -> None:
    evaluation = json.loads(composed("evaluate", "--json"))
    assert evaluation["overall"] > 0.5 and evaluation["mae"] is None and evaluation["bits"] is None
    assert evaluation["micro_f1"] > 0.8 and evaluation["macro_f1"] > 0.8
    assert evaluation["labels"]["glad"]["rows"] == sum(n % 2 == 0 for n in range(3, 100, 7))
    assert evaluation["confusion"] is None and evaluation["reliability"] is None
    printed = composed("evaluate", "--labels")
    assert "accuracy of whole sets" in printed and "micro F1" in printed and "glad" in printed


def test_a_file_gets_the_labels_and_their_scores(composed) -> None:
    Path("asked.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    composed("predict", "--in", "asked.jsonl", "--out", "answers.jsonl")
    rows = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [r["answer"] for r in rows] == ["glad|loud", r"a\|b:c", "none"]
    assert [r["answers"] for r in rows] == [["glad", "loud"], ["a|b:c"], []]
    composed("predict", "--in", "asked.jsonl", "--out", "answers.csv")
    with Path("answers.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [json.loads(r["answers"]) for r in table] == [r["answers"] for r in rows]
    assert json.loads(table[0]["scores"]) == rows[0]["scores"]


def test_a_server_answers_with_sets(composed) -> None:
    live = redhost.Live.open(home(), plugins=redhost.plugins.Plugins(()))
    expected = live.host.predict(TEXTS)
    with running(live, options=Options(seconds=1.0)) as (url, _), Client(url) as client:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [3], "data": [*TEXTS]}
        reply = client.post("/v2/models/redhost/infer", {"inputs": [tensor]}).body
        outputs = {o["name"]: o for o in reply["outputs"]}
        assert outputs["label"]["data"] == ["glad|loud", r"a\|b:c", "none"]
        shape, labels = (outputs["scores"][key] for key in ("shape", "parameters"))
        assert shape == [3, 4]
        known = [a.scores[y] for a in expected for y in labels["labels"]]
        assert outputs["scores"]["data"] == known
        listed = client.get("/v2/models/redhost").body["outputs"]
        assert {"name": "scores", "datatype": "FP64", "shape": [-1, 4]} in listed
        [row] = client.post("/classify", {"model": "auto", "input": TEXTS[0]}).body["data"]
        assert row["labels"] == ["glad", "loud"] and row["scores"] == expected[0].scores


def test_what_one_right_label_is_needed_for_is_refused(composed) -> None:
    for command in (
        ("predict", "--set", "90%", "x"),
        ("evaluate", "--plot", "x.svg"),
        ("evaluate", "--mixtures"),
    ):
        done = CliRunner().invoke(cli, command)
        assert isinstance(done.exception, UsageError), (command, done.output)


@pytest.mark.parametrize("writes", ["hidden", "logits"])
def test_experts_share_a_classifier_of_sets(model_folder, tmp_path, writes):
    """The residual sum, and every system it is compared with, under a head without softmax."""
    everything = [r for d in SITUATIONS for r in rows_of(d, range(40))]
    with desk(tmp_path) as (run, environment):
        environment.install(make_backbone(tmp_path / "b", model_folder, everything))
        Path("red.jsonl").write_bytes(write_rows(rows_of("red", range(100))))
        run("new-expert", "red", "--backbone", "sets", "--rank", "8", "--writes", writes)
        run("train-expert", "red-expert-red", "--data", "red.jsonl", "--epochs", "8")
        environment.install(Path("red-expert-red"))
        run("recompose", "--backbone", "sets")
    composed = redhost.Host.open(tmp_path / "home").composed
    assert set(composed.bus.labels) == {y for labels in SITUATIONS.values() for y in labels}
    h = composed.backbone.encode([rows_of("red", [88])[0].text, "nothing 4"])
    assert_bus_laws(composed.bus, h)
    assert float(composed.bus(h)[0].sum(-1).max()) > 1.05  # no distribution
