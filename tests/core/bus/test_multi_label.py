"""Multi-label is one more head: defined and registered here, and nothing else knows of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import redhost
from redhost.cli import cli
from redhost.core.bus.tasks import HEADS, NONE, Prediction, Unit, require_labels
from redhost.core.training.new_backbone import new_backbone
from redhost.core.training.recipes import train_project
from redhost.plugins import Head, make_task, register_task
from redhost.registry.errors import UnknownNameError, UsageError
from redhost.registry.package.forms import TASKS
from redhost.registry.package.manifest import parse_backbone
from redhost.registry.queries.settings import backbone_for
from redhost.testing import Environment, assert_bus_laws

NAME = "multi-label"
SITUATIONS = {"red": ("glad", "loud"), "blue": ("firm", "tall")}
"""The labels of each expert: one for texts with pluses, one for texts with capitals."""


class SigmoidHead(Head):
    """Any number of labels, written "a|b", or "none"; p(y|x) = sigmoid(logits / T) of each."""

    name, noun, domain = "sigmoid", "sets of labels", "texts with some of {n} labels"
    distribution, cards = False, ("texts", "none")

    def output(self, logits: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        return torch.sigmoid(logits / temperature)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        targets = targets.to(logits.dtype)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)

    def targets(self, answers: Sequence[str], labels: Sequence[str] = ()) -> Tensor:
        require_labels(self.labels_in(answers), labels)
        return torch.tensor([[float(y in a.split("|")) for y in labels] for a in answers])

    def answers(self, targets: Tensor, labels: Sequence[str] = ()) -> tuple[str, ...]:
        return tuple(
            "|".join(sorted(y for y, p in zip(labels, row, strict=True) if p >= 0.5 and y != NONE))
            or NONE
            for row in targets.tolist()
        )

    def read(self, output: Tensor, labels: Sequence[str] = ()) -> list[Prediction]:
        own = torch.tensor([y != NONE for y in labels])
        sure = torch.maximum(output, 1 - output)[:, own].prod(dim=-1)
        return [
            Prediction(label=label, probability=float(p))
            for label, p in zip(self.answers(output, labels), sure, strict=True)
        ]

    def labels_in(self, answers: Iterable[str]) -> set[str]:
        return {y for answer in answers for y in answer.split("|")} - {NONE}

    def expected(self, answer: str) -> str | None:
        labels = answer.split("|")
        return None if labels == sorted({*labels} - {""}) else "sorted labels with '|' between them"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_task(NAME, SigmoidHead)
    yield
    del TASKS[NAME], HEADS[SigmoidHead.name]


def rows_of(domain: str, numbers: Iterable[int]) -> list[redhost.Row]:
    """Texts labelled with what is true of them."""
    rows = []
    for n in numbers:
        pluses, capitals = n % 2 == 0, n % 4 < 2
        true = zip(SITUATIONS[domain], (pluses, capitals), strict=True)
        label = "|".join(y for y, holds in true if holds) or NONE
        text = (
            f"{domain} {n} {'+' * 12 if pluses else '-' * 12} {'X' * 12 if capitals else 'y' * 12}"
        )
        rows.append(redhost.Row(text=text, label=label, domain=domain))
    return rows


@pytest.fixture
def run(environment: Environment, tmp_path: Path, monkeypatch) -> Callable[..., str]:
    """Return the function that runs a command, which must succeed, in a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))

    def command(*arguments: str) -> str:
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return command


def make_backbone(project: Path, model: Path, rows: Sequence[redhost.Row] = ()) -> Path:
    new_backbone(
        project,
        "sets",
        f"hf:{model}",
        task=make_task(NAME),
        rows=rows,
        settings=redhost.authoring.AdaptSettings(last_blocks=0, epochs=4),
        background=[redhost.authoring.BackgroundRow(text=f"nothing {n}") for n in range(20)],
        evaluation=[r for d in SITUATIONS for r in rows_of(d, range(3, 100, 7))],
    )
    return project


def test_from_an_authors_rows_to_sets_of_labels(run, environment, model_folder, tmp_path) -> None:
    environment.install(make_backbone(tmp_path / "b", model_folder))
    for domain, labels in SITUATIONS.items():
        rows = "".join(
            json.dumps({"text": r.text, "label": r.label}) + "\n"
            for r in rows_of(domain, range(400))
        )
        Path(f"{domain}.jsonl").write_text(rows)
        project = f"red-expert-{domain}"
        run("new-expert", domain, "--backbone", "sets", "--rank", "8")
        run("train-expert", project, "--data", f"{domain}.jsonl")
        manifest = json.loads(next(Path(project).rglob("expert.json")).read_text())
        assert manifest["labels"] == sorted(labels) and manifest["temperature"] != 1.0
        assert manifest["training"]["metrics"]["gate"] > 0.5  # of four sets
        assert "whl" in run("pack", project)
        environment.install(Path(project))
        assert run("check", domain, "--backbone", "sets") == f"{domain}: ok\n"
    receipt = json.loads(run("recompose", "--backbone", "sets", "--json"))
    assert set(receipt["experts"]) == set(SITUATIONS) and receipt["router"]["kind"] == "evidence"
    evaluation = json.loads(run("evaluate", "--json"))
    assert evaluation["overall"] > 0.5 and evaluation["mae"] is None and evaluation["bits"] is None
    texts = (rows_of("red", [88])[0].text, rows_of("blue", [5])[0].text, "nothing 4")
    answers = json.loads(run("predict", *texts, "--json"))
    assert [a["label"] for a in answers] == ["glad|loud", "tall", "none"]
    assert all(0 <= a["probability"] <= 1 and a["value"] is None for a in answers)


@pytest.mark.parametrize("writes", ["hidden", "logits"])
def test_experts_share_a_classifier_of_sets(run, environment, model_folder, tmp_path, writes):
    """The residual sum, and every system it is compared with, under a head without softmax."""
    everything = [r for d in SITUATIONS for r in rows_of(d, range(40))]
    environment.install(make_backbone(tmp_path / "b", model_folder, everything))
    Path("red.jsonl").write_bytes(redhost.authoring.write_rows(rows_of("red", range(100))))
    run("new-expert", "red", "--backbone", "sets", "--rank", "8", "--writes", writes)
    run("train-expert", "red-expert-red", "--data", "red.jsonl", "--epochs", "8")
    environment.install(Path("red-expert-red"))
    run("recompose", "--backbone", "sets")
    composed = redhost.Host.open(tmp_path / "home").composed
    assert set(composed.bus.labels) == {y for labels in SITUATIONS.values() for y in labels}
    h = composed.backbone.encode([rows_of("red", [88])[0].text, "nothing 4"])
    assert_bus_laws(composed.bus, h)
    assert float(composed.bus(h)[0].sum(-1).max()) > 1.05  # no distribution


def test_what_single_classes_are_needed_for_is_refused(run, environment, model_folder, tmp_path):
    environment.install(make_backbone(tmp_path / "b", model_folder))
    run("new-expert", "red", "--backbone", "sets", "--card", "statistics")
    with pytest.raises(UsageError, match="cannot ship a card of statistics"):
        package = backbone_for(Path("red-expert-red"), home=None, wanted="sets")
        train_project(Path("red-expert-red"), rows_of("red", range(100)), package=package)
    with pytest.raises(UsageError, match="line 1: expected sorted labels"):
        Path("bad.jsonl").write_text('{"text": "x", "label": "a||b"}\n')
        redhost.authoring.read_table("bad.jsonl", head=SigmoidHead())


def test_a_task_nobody_registered_is_refused_by_name(model_folder, tmp_path) -> None:
    folder = next((make_backbone(tmp_path / "b", model_folder) / "src").iterdir())
    written = (folder / "backbone.json").read_text()
    assert parse_backbone(written.encode()).unwrap("it").task == NAME
    [violation] = parse_backbone(written.replace(NAME, "multilabel").encode()).violations
    assert (violation.code, violation.field, violation.found) == (
        "manifest_field",
        "task",
        "multilabel",
    )
    assert "Did you mean 'multi-label'?" in violation.hint
    with pytest.raises(UnknownNameError, match="unknown task 'multilabel'"):
        make_task("multilabel")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register_task("classification", SigmoidHead)
    with pytest.raises(ValueError, match="registered already"):
        register_task("other", type("Other", (SigmoidHead,), {}), unit=Unit.TOKEN)
