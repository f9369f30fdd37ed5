"""Questions side by side in one home: compositions of their own, over one store and one encoder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redhost_author

import redhost
from redhost.registry.errors import (
    CompositionError,
    ContractError,
    HarmError,
    IntegrityError,
    MissingError,
    StoreError,
    UsageError,
)
from redhost.registry.home.generations import Generations
from redhost.registry.home.store import Store

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]

Ask = Callable[..., Path]


@pytest.fixture
def ask(environment, expert_folders, tmp_path) -> Ask:
    """Return a function that installs a copy of an expert, which answers a question."""

    def install(name: str, question: str | None, *, expert_id: str | None = None) -> Path:
        expert_id = expert_id or name
        project = tmp_path / f"{expert_id}-{question}"
        folder = redhost_author.write_project(
            project, kind="expert", package_id=expert_id, summary="a copy"
        )
        for file in expert_folders[name].glob("*.*[!y]"):
            shutil.copy(file, folder)
        manifest = json.loads((folder / "expert.json").read_text("utf-8")) | {"id": expert_id}
        if question is not None:
            manifest |= {"question": question}
        (folder / "expert.json").write_text(json.dumps(manifest), "utf-8")
        environment.install(project, code="raise AssertionError('imported')\n")
        return project

    return install


@pytest.fixture
def home(environment, backbone_folder, ask, tmp_path, made_once) -> Path:
    """Red answers the home's own question, green that of colour; blue and shade that of mood."""
    environment.install(backbone_folder.parents[1])
    ask("red", None)
    ask("green", "colour")
    ask("blue", "mood")
    ask("red", "mood", expert_id="shade")
    home = tmp_path / "home"
    with made_once("questions", home) as empty:
        for question in (None, "colour", "mood") if empty else ():
            open_host(home, question).recompose()
    return home


def open_host(home: Path, question: str | None = None) -> redhost.Host:
    return redhost.Host.open(home, question=question, backbone="toy")


def contents(home: Path, question: str | None = None) -> dict[str, bytes]:
    """Return every file of one composition: all of its home but what questions share."""
    folder = home / "questions" / question if question else home
    shared = {"store", "cache", "questions", "writer.lock", "writer.pid", "leases"}
    files = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    return {str(n): p.read_bytes() for n, p in files.items() if n.parts[0] not in shared}


def counted_passes(monkeypatch) -> list[int]:
    """Return a list that gets the number of texts of every pass through an encoder."""
    from redhost.core.backbones.backbone import Backbone

    passes, plain = list[int](), Backbone.encode

    def encode(self, texts, *args: Any, **options: Any):
        passes.append(len(texts))
        return plain(self, texts, *args, **options)

    monkeypatch.setattr(Backbone, "encode", encode)
    return passes


@pytest.mark.parametrize("each", [False, True])
def test_every_question_is_answered_bit_for_bit_as_it_is_alone_in_one_pass(
    home, monkeypatch, each
) -> None:
    alone = {q: open_host(home, q).predict(TEXTS, each=each) for q in ("colour", "mood")}
    host = open_host(home)
    host.predict(TEXTS[:1])  # what is loaded checks canaries on passes of its own
    passes = counted_passes(monkeypatch)
    found = host.predict(TEXTS, each=each)
    assert passes == [len(TEXTS)]
    assert host.questions == ("colour", "mood")
    assert {q: [a.named[q] for a in found] for q in alone} == alone
    assert [set(a.weights) for a in found[:1]] == [{"red", "backbone"}]
    assert found[2].named["mood"].label == "f" and found[1].named["colour"].label == "c"


def test_label_sets_are_answered_where_they_can_be_had_and_refused_where_nowhere(home) -> None:
    """A question of another task, e.g. spans, has no calibration either."""
    beside = open_host(home).side_by_side
    colour = dataclasses.replace(beside.named["colour"], calibration=None)
    mixed = dataclasses.replace(beside, named={**beside.named, "colour": colour})
    alone = {q: open_host(home, q).predict(TEXTS, sets=0.9) for q in ("colour", "mood")}
    found = mixed.answer(TEXTS, sets=0.9)
    assert [a.named["mood"] for a in found] == alone["mood"]
    assert [a.named["colour"].labels for a in found] == [None] * len(TEXTS)
    assert [a.named["colour"].label for a in found] == [a.label for a in alone["colour"]]
    assert all(a.labels for a in found) and mixed.levels(0.9) == {
        None: 0.9, "colour": None, "mood": 0.9
    }  # fmt: skip
    nowhere = dataclasses.replace(beside, default=None, named={"colour": colour})
    with pytest.raises(UsageError, match="no calibration for label sets"):
        nowhere.answer(TEXTS, sets=0.9)


def test_a_home_of_one_question_answers_and_is_written_as_ever(installed, tmp_path) -> None:
    host = open_host(tmp_path / "one")
    host.recompose()
    [answer] = host.predict(TEXTS[:1])
    written = json.loads(msgspec.json.encode(answer))
    assert "questions" not in written and answer.named == {}
    assert not (tmp_path / "one" / "questions").exists()
    assert "question" not in host.generations.load(1).settings


def test_where_no_question_of_its_own_is_composed_the_named_ones_answer(
    environment, backbone_folder, ask, tmp_path
) -> None:
    environment.install(backbone_folder.parents[1])
    ask("green", "colour")
    host = open_host(tmp_path / "home")
    with pytest.raises(MissingError) as e:
        host.recompose()
    assert "--question colour" in (e.value.hint or "")
    open_host(tmp_path / "home", "colour").recompose()
    [answer] = host.predict(TEXTS[1])
    assert (answer.label, answer.declined, answer.weights) == ("none", True, {})
    assert answer.generation is None and answer.named["colour"].label == "c"
    with pytest.raises(MissingError) as e:
        host.evaluate()
    assert "colour" in str(e.value)


def test_the_log_says_which_question_a_generation_is_served_for(home, caplog) -> None:
    with caplog.at_level("INFO", logger="redhost"):
        redhost.Live.open(home, backbone="toy").of_question("mood")
    served = ["generation 1 is served", "question 'mood': generation 1 is served"]
    assert [x for x in caplog.messages if "is served" in x] == served


def test_what_joins_and_leaves_in_one_question_changes_no_byte_of_another(
    home, environment, ask
) -> None:
    others = {q: contents(home, q) for q in (None, "colour")}
    before = open_host(home).predict(TEXTS)
    environment.uninstall("red-expert-shade")
    ask("green", "mood", expert_id="moss")
    receipt = open_host(home, "mood").recompose(accept=True)
    assert set(receipt.experts) == {"blue", "moss"}
    assert {x.id for x in receipt.left_out if x.code != "backbone_mismatch"} == set()
    assert {q: contents(home, q) for q in others} == others
    after = open_host(home).predict(TEXTS)
    assert [a.named["colour"] for a in after] == [a.named["colour"] for a in before]
    assert [a.weights for a in after] == [a.weights for a in before]
    assert {a.named["mood"].generation for a in after} == {2}
    assert open_host(home, "mood").rollback() == 1
    assert open_host(home).predict(TEXTS) == before
    assert {q: contents(home, q) for q in others} == others


def test_an_expert_of_another_question_is_refused_by_field(home, ask, environment) -> None:
    host = open_host(home)
    environment.uninstall("red-expert-blue")
    project = ask("blue", "shape")
    for where in (host, open_host(home, "mood")):
        with pytest.raises(ContractError) as e:
            where.attach(next((project / "src").iterdir()))
        assert "question" in str(e.value) and "'shape'" in str(e.value)
    with pytest.raises(UsageError):
        open_host(home, "No Name")
    with pytest.raises(MissingError) as missing:
        open_host(home, "moode").predict(TEXTS)
    assert "Did you mean 'mood'?" in (missing.value.hint or "")


def test_a_member_that_answers_another_question_now_is_not_lost_silently(
    home, ask, environment
) -> None:
    environment.uninstall("red-expert-red")
    ask("red", "colour")
    ask("green", None, expert_id="own")
    with pytest.raises(HarmError) as e:
        open_host(home).recompose()
    assert "'colour'" in str(e.value)
    assert set(open_host(home, "colour").recompose(accept=True).experts) == {"green", "red"}


def test_gc_keeps_what_any_question_needs(home, environment, ask) -> None:
    answers, store = open_host(home).predict(TEXTS), Store(home)
    before = store.digests()
    environment.uninstall("red-expert-shade")
    open_host(home, "mood").recompose(accept=True)
    for question in (None, "colour"):
        assert Generations(open_host(home, question).home).gc(1).digests == ()
    gone = Generations(home / "questions" / "mood").gc(1)
    assert (gone.generations, len(gone.digests)) == ((1,), 1)
    assert before - store.digests() == {*gone.digests}
    after = open_host(home).predict(TEXTS)
    assert [a.named["colour"] for a in after] == [a.named["colour"] for a in answers]
    shutil.rmtree(home / "questions" / "colour")  # how a question is given up
    assert len(Generations(home).gc(5).digests) == 1
    assert open_host(home).questions == ("mood",)


def test_the_last_one_of_a_question_can_only_go_with_it_which_the_refusal_says(home) -> None:
    with pytest.raises(CompositionError, match="'green' is the only one composed") as e:
        open_host(home, "colour").detach("green")
    folder = home / "questions" / "colour"
    assert f"remove {folder} and run 'redhost gc'" in str(e.value)


def test_a_generation_is_received_by_its_own_question_alone(home, tmp_path) -> None:
    mood = open_host(home, "mood").generations
    record = mood.load(1)
    files = {n: mood.file(record, n) for n in record.files}
    files["composition.json"] = mood.record(1)
    other = Generations(tmp_path / "other")
    mine = Generations(tmp_path / "other" / "questions" / "mood")
    for digest in record.digests():
        other.store.put(mood.store.get(digest), digest=digest)
    with other.writer() as writer, pytest.raises(StoreError, match="another question"):
        other.receive(1, files, writer=writer)
    with mine.writer() as writer:
        assert mine.receive(1, files, writer=writer) == record


def test_a_composition_of_a_question_follows_its_own_lock(home) -> None:
    mood = open_host(home, "mood")
    lock = (mood.home / "redhost.lock").read_bytes()
    assert mood.recompose(locked=True).generation == 2
    assert (mood.home / "redhost.lock").read_bytes() == lock
    assert open_host(home).generations.current() == 1


def test_a_damaged_question_is_named_and_the_others_can_be_had(home) -> None:
    expected = open_host(home, "colour").predict(TEXTS)
    (home / "questions" / "mood" / "generations" / "1" / "router.safetensors").write_bytes(b"")
    with pytest.raises(IntegrityError, match="question 'mood'"):
        open_host(home).predict(TEXTS)
    assert open_host(home, "colour").predict(TEXTS) == expected
    beside = open_host(home).side_by_side
    assert list(beside.damaged) == ["mood"] and list(beside.named) == ["colour"]
    assert [a.named for a in beside.answer(TEXTS)] == [{"colour": a} for a in expected]


def test_the_named_questions_can_be_had_where_the_homes_own_is_damaged(home) -> None:
    expected = open_host(home, "mood").predict(TEXTS)
    (home / "generations" / "1" / "router.safetensors").write_bytes(b"")
    beside = open_host(home).side_by_side
    assert list(beside.damaged) == [None] and beside.default is None
    assert [a.named["mood"] for a in beside.answer(TEXTS)] == expected
    with pytest.raises(IntegrityError):
        open_host(home).predict(TEXTS)
    for question in ("colour", "mood"):
        router = home / "questions" / question / "generations" / "1" / "router.safetensors"
        router.write_bytes(b"")
    with pytest.raises(IntegrityError):  # nobody is left to answer
        open_host(home).side_by_side  # noqa: B018
