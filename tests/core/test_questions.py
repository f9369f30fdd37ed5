"""Questions side by side in one home: compositions of their own, over one store and one encoder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import redhost

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]

Asked = Callable[..., Path]


@pytest.fixture
def ask(environment, expert_folders, tmp_path) -> Asked:
    """Return a function that installs an expert's copy, which answers a named question."""

    def install(name: str, question: str | None, *, expert_id: str | None = None) -> Path:
        expert_id = expert_id or name
        project = tmp_path / f"packages-{expert_id}-{question}"
        folder = redhost.authoring.write_project(
            project, kind="expert", package_id=expert_id, summary="a copy"
        )
        for file in expert_folders[name].iterdir():
            if file.name != "__init__.py":
                shutil.copy(file, folder)
        manifest = json.loads((folder / "expert.json").read_text("utf-8")) | {"id": expert_id}
        if question is not None:
            manifest |= {"schema": "redhost.expert/1.5", "question": question}
        (folder / "expert.json").write_text(json.dumps(manifest), "utf-8")
        environment.install(project, code="raise AssertionError('imported')\n")
        return folder

    return install


@pytest.fixture
def three(environment, backbone_folder, ask, home) -> redhost.Host:
    """A home with its own question and two named ones, composed: red; green; blue and shade."""
    environment.install(backbone_folder.parents[1])
    ask("red", None)
    ask("green", "colour")
    ask("blue", "mood")
    ask("red", "mood", expert_id="shade")
    host = redhost.Host.open(home, backbone="toy")
    host.recompose()
    for question in ("colour", "mood"):
        redhost.Host.open(home, question=question, backbone="toy").recompose()
    return redhost.Host.open(home, backbone="toy")


def contents(home: Path) -> dict[str, bytes]:
    """Return every file of one composition, the store, cache and writer's lock left out."""
    shared = {"store", "cache", "questions", "writer.lock", "writer.pid", "leases"}
    files = (p for p in home.rglob("*") if p.is_file())
    named = ((p.relative_to(home), p) for p in files)
    return {str(n): p.read_bytes() for n, p in named if n.parts[0] not in shared}


def plain(answer: redhost.Answer) -> redhost.Answer:
    return dataclasses.replace(
        answer, questions=redhost.Host.open.__kwdefaults__ and __import__("msgspec").UNSET
    )


def test_every_question_is_answered_as_it_is_alone_bit_for_bit(three, home) -> None:
    found = three.predict(TEXTS)
    assert three.questions == ("colour", "mood")
    assert {tuple(a.named) for a in found} == {("colour", "mood")}
    assert set(found[0].weights) == {"red", "backbone"}
    for question in three.questions:
        alone = redhost.Host.open(home, question=question).predict(TEXTS)
        assert [a.named[question] for a in found] == alone
    assert [a.named["mood"].label for a in found][2] == "f"
