"""Spans with a label: from two authors' rows to answers, files and a server."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers
from click.testing import CliRunner
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.verifying import Verifier
from redhost_serve.client import Client
from redhost_serve.server import running
from redhost_serve.service import Options
from redhost_spans.label_spans import read_spans

import redhost
from redhost.cli import cli
from redhost.core.composition.recompose import compose
from redhost.core.types import BackgroundRow
from redhost.pipelines import pipeline
from redhost.plugins import make_task
from redhost.registry.environment.extras import how_to_install
from redhost.registry.errors import RedhostError, UsageError
from redhost.registry.package.discover import from_folder
from redhost.registry.package.forms import TASKS
from redhost.registry.package.readers import read_backbone, read_expert
from redhost.testing import Environment

FOUND = {"red": {"sum": "one two", "sign": "left"}, "blue": {"code": "zip", "sign": "left"}}
"""What each author marks: label → the words that have it."""

PIECES = ("red", "blue", "x", "yy", "one", "two", "left", "zip", "nothing", "here")
"""What the encoder reads; numbers are unknown to it."""


def spans_of(domain: str, n: int) -> tuple[str, list[list[object]]]:
    """A text, and where in it an author's words stand."""
    label = sorted(FOUND[domain])[n % 2]
    words = FOUND[domain][label] if n % 5 else "yy"  # some have nothing
    text = " ".join((domain, *["x"] * (n % 3), words, "yy", domain, *["x"] * (n % 7), str(n)))
    start = text.index(words)
    return text, [[start, start + len(words), label]] if n % 5 else []


def lines_of(domain: str, numbers: Iterable[int]) -> str:
    rows = [spans_of(domain, n) for n in numbers]
    return "".join(json.dumps({"text": t, "label": s, "domain": domain}) + "\n" for t, s in rows)


def make_backbone(project: Path, model: Path) -> Path:
    rows = [json.loads(line) for d in FOUND for line in lines_of(d, range(700, 740)).splitlines()]
    new_backbone(
        project,
        BackbonePlan(id="spans", source=f"hf:{model}", task=make_task("spans")),
        background=[BackgroundRow(text=f"nothing {n} here") for n in range(20)],
        evaluation=[
            redhost.Row(text=r["text"], label=str(read_spans(r["label"], r["text"])), domain=d)
            for r in rows
            if (d := r["domain"])
        ],
    )
    return project


@pytest.fixture(scope="module")
def model_folder(make_word_reader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_word_reader(tmp_path_factory.mktemp("model"), *PIECES)


def home() -> Path:
    return Path(os.environ["REDHOST_HOME"])


@pytest.fixture(scope="module")
def composed(model_folder, tmp_path_factory) -> Iterator[Path]:
    """A home where the experts of two authors are composed."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder / "site"))
        patch.setenv("REDHOST_HOME", str(folder / "home"))
        patch.setenv("REDHOST_CONFIG", str(folder / "config"))
        environment = Environment(folder / "site")
        environment.install(make_backbone(folder / "b", model_folder))
        for domain in FOUND:
            Path(f"{domain}.jsonl").write_text(lines_of(domain, range(300)))
            run("new-expert", domain, "--backbone", "spans")
            run("train-expert", f"red-expert-{domain}", "--data", f"{domain}.jsonl")
            assert "whl" in run("pack", f"red-expert-{domain}")
            environment.install(Path(f"red-expert-{domain}"))
            assert run("check", domain, "--backbone", "spans") == f"{domain}: ok\n"
        run("recompose", "--backbone", "spans")
        yield folder


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


TEXTS = ("red x one two yy red x 801", "blue zip yy blue x 802", "red x yy yy red 803")


def test_an_author_ships_thresholds_and_the_exact_match_of_spans_set_aside(composed) -> None:
    for domain, labels in FOUND.items():
        [file] = (composed / f"red-expert-{domain}").rglob("expert.json")
        manifest = json.loads(file.read_text())
        assert manifest["labels"] == sorted(labels) and len(manifest["thresholds"]) == 2
        assert len(manifest["span_rules"]) == 2 and manifest["schema"] == "redhost.expert/1"
        measured = manifest["training"]["metrics"]
        assert measured["gate"] > 0.95 and measured["micro_f1"] > 0.9
    [file] = (composed / "b").rglob("backbone.json")
    assert json.loads(file.read_text())["schema"] == "redhost.backbone/1"


def test_an_expert_is_checked_where_its_backbone_is_not_at_hand(composed) -> None:
    for domain in FOUND:
        [file] = (composed / f"red-expert-{domain}").rglob("expert.json")
        files = read_expert(from_folder(file.parent)).unwrap(domain)
        assert Verifier().expert(files, backbone=None) == ()


def test_an_answer_has_its_spans_with_places_and_probabilities(composed) -> None:
    answers = json.loads(run("predict", *TEXTS, "--json"))
    for text, answer in zip(TEXTS, answers, strict=True):
        for span in answer["spans"]:
            assert text[span["start"] : span["end"]] == span["text"]
            assert 0 < span["probability"] <= 1
        written = "|".join(f"{s['start']}:{s['end']}:{s['label']}" for s in answer["spans"])
        assert answer["label"] == (written or "none") and not answer["declined"]
        assert answer["labels"] == sorted({s["label"] for s in answer["spans"]})
    assert [a["label"] for a in answers] == ["6:13:sum", "5:8:code", "none"]
    assert max(answers[0]["weights"], key=answers[0]["weights"].get) == "red"


def test_spans_are_evaluated_by_exact_match(composed) -> None:
    found = json.loads(run("evaluate", "--json"))
    rows = [json.loads(x) for d in FOUND for x in lines_of(d, range(700, 740)).splitlines()]
    assert found["labels"]["sign"]["rows"] == sum(s[2] == "sign" for r in rows for s in r["label"])
    assert found["micro_f1"] > 0.9 and found["rows"] > len(rows)  # words
    printed = run("evaluate", "--labels")
    assert "of exact spans" in printed and "by word" in printed and "sign" in printed


def test_a_file_gets_the_spans(composed) -> None:
    Path("asked.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    known = json.loads(run("predict", *TEXTS, "--json"))
    for name in ("answers.jsonl", "answers.csv"):
        run("predict", "--in", "asked.jsonl", "--out", name)
    rows = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [r["spans"] for r in rows] == [a["spans"] for a in known]
    with Path("answers.csv").open(newline="") as file:
        assert [json.loads(r["spans"]) for r in csv.DictReader(file)] == [r["spans"] for r in rows]


def test_a_file_with_label_sets_is_refused_before_a_part_is_written(composed) -> None:
    Path("rows.jsonl").write_text(json.dumps({"text": TEXTS[0]}) + "\n")
    options = ("--in", "rows.jsonl", "--out", "sets.jsonl", "--set", "90%")
    done = CliRunner().invoke(cli, ("predict", *options))
    assert isinstance(done.exception, UsageError) and "found spans" in str(done.exception)
    assert not Path("sets.jsonl.parts").exists()


def test_a_text_alone_is_answered_as_it_is_among_others(composed) -> None:
    host = redhost.Host.open(home())
    answers = host.predict(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        [alone] = host.predict(text)
        assert (alone.label, alone.cut) == (answer.label, answer.cut)
        assert alone.scores == pytest.approx(answer.scores, abs=1e-6)
    for route, answer in zip(host.composed.chooser.route(TEXTS), answers, strict=True):
        assert route.weights == pytest.approx(answer.weights, abs=1e-6)


def test_every_expert_says_for_itself_what_it_finds(composed) -> None:
    text = "red x one two zip yy left x 801"
    [answer] = json.loads(run("predict", "--each", text, "--json"))
    assert {k: answer["by_expert"][k]["label"] for k in FOUND} == {
        "red": "6:13:sum|21:25:sign",
        "blue": "14:17:code|21:25:sign",
    }
    [backbone] = (composed / "b").rglob("backbone.json")
    for domain in FOUND:  # as it answers where no other expert is
        [file] = (composed / f"red-expert-{domain}").rglob("expert.json")
        [alone] = compose(backbone.parent, [file.parent]).composed.answer([text], each=True)
        assert alone.by_expert is not None
        assert msgspec.to_builtins(alone.by_expert[domain]) == answer["by_expert"][domain]


def test_a_server_answers_with_spans(composed) -> None:
    live = redhost.Live.open(home())
    expected = live.host.predict(TEXTS)
    options = Options(seconds=1.0)
    with (
        running(live, options=options, token="t") as (url, service),
        Client(url, token="t") as client,
    ):
        tensor = {"name": "text", "datatype": "BYTES", "shape": [3], "data": [*TEXTS]}
        reply = client.post("/v2/models/redhost/infer", {"inputs": [tensor]}).body
        outputs = {o["name"]: o for o in reply["outputs"]}
        assert outputs["label"]["data"] == [a.label for a in expected]
        [row] = client.post("/classify", {"model": "auto", "input": TEXTS[0]}).body["data"]
        assert row["spans"] == [
            {"start": 6, "end": 13, "label": "sum", "text": "one two"}
            | {"probability": expected[0].spans[0].probability}
        ]
        refused = client.post("/v1/embeddings", {"model": "auto", "input": TEXTS[0]})
        assert refused.status == 400 and "answers spans" in refused.body["error"]["message"]
        feedback = {"texts": [TEXTS[0]], "labels": ["6:13:sum"]}
        assert client.post("/v1/feedback", feedback).body["production"]["right"] == 1
        service.close()


def test_a_pipeline_has_the_shape_of_the_real_one(composed, model_folder) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    config = transformers.AutoConfig.from_pretrained(model_folder, num_labels=1)
    config.id2label = {0: "B-x"}
    model = transformers.AutoModelForTokenClassification.from_config(config)
    theirs = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple"
    )
    ours = pipeline("token-classification", home=home())
    one: list[Any] = [pipe(TEXTS[0]) for pipe in (ours, theirs)]
    several: list[Any] = [pipe([*TEXTS[:2]])[0] for pipe in (ours, theirs)]
    for found, real in (one, several):
        assert found[0].keys() == real[0].keys()
        assert {type(found[0][k]) for k in ("start", "end")} == {int}
    spans = redhost.Host.open(home()).predict(TEXTS[0])[0].spans or ()
    assert [(x["entity_group"], x["word"]) for x in ours(TEXTS[0])] == [
        (s.label, s.text) for s in spans
    ]
    with pytest.raises(UsageError, match="token-classification"):
        pipeline("text-classification", home=home())


def test_an_author_s_spans_are_checked_row_by_row(composed) -> None:
    for label, message in (
        ([[0, 99, "sum"]], "within 0 … 5"),
        ([[3, 3, "sum"]], "within 0 … 5"),
        ([[0, 2, ""]], "within 0 … 5"),
        ([[0, 2, "sum"], [1, 3, "sum"]], "within 0 … 5"),
        ("PER", "within 0 … 5"),
        (3, "within 0 … 5"),
    ):
        Path("bad.jsonl").write_text(json.dumps({"text": "a b c", "label": label}) + "\n")
        author = ("train-expert", str(composed / "red-expert-red"), "--data", "bad.jsonl")
        done = CliRunner().invoke(cli, author)
        assert isinstance(done.exception, UsageError) and "line 1" in str(done.exception)
        assert message in str(done.exception)


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--set", "90%", "x"),
        ("evaluate", "--mixtures"),
        ("recompose", "--decline", "5%"),
        ("sweep", "ridge"),
    ],
)
def test_what_spans_cannot_have_is_refused(composed, command) -> None:
    before = run("predict", TEXTS[0], "--json")
    done = CliRunner().invoke(cli, command)
    assert isinstance(done.exception, RedhostError) and done.exit_code != 0, done.output
    assert run("predict", TEXTS[0], "--json") == before


@pytest.mark.parametrize(
    "command",
    [
        ("new-backbone", "other", "--from", "hf:{model}", "--task", "spans"),
        ("train-expert", "red-expert-red", "--data", "red.jsonl"),
        ("check", "red", "--backbone", "spans"),
        ("recompose",),
        ("predict", "x"),
        ("evaluate",),
    ],
    ids=lambda command: command[0],
)
def test_without_the_plugin_a_verb_names_the_extra(
    composed, model_folder, monkeypatch, command
) -> None:
    monkeypatch.delitem(TASKS, "spans")
    monkeypatch.setattr("redhost.core.plugins.manager.plugin_entry_points", lambda group: ())
    done = CliRunner().invoke(cli, [part.format(model=model_folder) for part in command])
    assert done.exit_code == 1
    assert how_to_install("spans") in f"{done.output}{done.exception}"


def test_an_expert_alone_names_the_extra_too(composed, monkeypatch) -> None:
    monkeypatch.delitem(TASKS, "spans")
    [file] = (composed / "red-expert-red").rglob("expert.json")
    files = read_expert(from_folder(file.parent)).unwrap("red")
    [wrong] = Verifier(plugins=redhost.plugins.Plugins(())).expert(files, backbone=None)
    assert (wrong.code, wrong.hint) == ("task_unknown", how_to_install("spans"))


def test_a_manifest_that_its_task_forbids_is_refused_once_the_task_is_known(
    composed, monkeypatch
) -> None:
    [file] = (composed / "b").rglob("backbone.json")
    files = read_backbone(from_folder(file.parent)).unwrap("spans")
    files = msgspec.structs.replace(
        files, manifest=msgspec.structs.replace(files.manifest, labels=("x",))
    )
    monkeypatch.delitem(TASKS, "spans")
    [wrong] = Verifier().backbone(files)
    expected = "no labels and no classifier where experts answer spans"
    assert (wrong.code, wrong.expected) == ("manifest_field", expected)
