"""Questions from the command line: --question, wherever a composition is meant."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import redhost

TEXT = "What is 37 plus 12?"
PARITY = {"question": "parity"}


@pytest.fixture
def install(environment, draft, tmp_path) -> Any:
    """Return the function that unpacks a wheel, as all that installing data takes."""

    def unpack(expert_id: str, **changes: Any) -> None:
        with zipfile.ZipFile(draft(expert_id, **changes).write(tmp_path)) as archive:
            archive.extractall(environment.folder)
        environment.seal(f"red-expert-{expert_id}")

    return unpack


@pytest.fixture
def two_questions(home, install, call) -> Path:
    """The shipped home, with one expert of the question parity composed beside it."""
    install("odd", **PARITY)
    assert call("recompose", "--question", "parity")[0] == 0
    return home


def printed(done: tuple[int, str, str]) -> Any:
    assert done[0] == 0, done
    return json.loads(done[1])


def test_predict_answers_every_question_or_one(two_questions, call) -> None:
    [answer] = printed(call("predict", TEXT, "--json"))
    assert (answer["label"], set(answer["questions"])) == ("49", {"parity"})
    [alone] = printed(call("predict", TEXT, "--json", "--question", "parity"))
    assert alone == answer["questions"]["parity"] and "questions" not in alone
    lines = call("predict", TEXT)[1].splitlines()
    assert lines[0].startswith(f"{TEXT} → 49") and any(
        line.startswith(f"{TEXT} [parity] → ") for line in lines
    )


def test_a_damaged_question_is_named_and_the_others_are_answered(
    two_questions, call, tmp_path
) -> None:
    (two_questions / "questions/parity/generations/1/router.safetensors").write_bytes(b"")
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": TEXT}) + "\n", "utf-8")
    code, out, err = call("predict", TEXT)
    assert (code, out.splitlines()[0][: len(TEXT) + 5]) == (1, f"{TEXT} → 49")
    assert "question 'parity'" in err and len(err.splitlines()) == 1
    code, out, err = call("predict", TEXT, "--json", "--set", "90%")
    assert (code, json.loads(out)[0]["label"]) == (1, "49") and "question 'parity'" in err
    code, out, err = call("predict", "--in", "in.jsonl", "--out", "out.jsonl")
    assert (code, out) == (1, "out.jsonl: 1 rows, generation 1\n") and "question 'parity'" in err
    assert "questions" not in json.loads((tmp_path / "out.jsonl").read_text("utf-8"))


def test_a_file_is_answered_for_every_question(two_questions, call, tmp_path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": TEXT}) + "\n", "utf-8")
    code, out, _ = call("predict", "--in", "in.jsonl", "--out", "out.jsonl")
    assert code == 0 and out.endswith("1 rows, generation 1, parity generation 1\n")
    [row] = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    [answer] = redhost.Host.open(two_questions, plugins=redhost.plugins.Plugins(())).predict(TEXT)
    assert row["answer"] == "49"
    assert row["questions"]["parity"]["probability"] == answer.named["parity"].probability
    call("predict", "--in", "in.jsonl", "--out", "one.csv", "--question", "parity")
    assert "questions" not in (tmp_path / "one.csv").read_text("utf-8")


def test_each_command_is_about_the_question_that_it_names(two_questions, call) -> None:
    call("recompose", "--question", "parity", "--router", "centroid", "--accept")
    [route] = printed(call("route", TEXT, "--json", "--question", "parity"))
    assert set(route["weights"]) == {"odd", "backbone"}
    assert printed(call("status", "--json"))["questions"] == {"parity": 2}
    status = printed(call("status", "--json", "--question", "parity"))
    assert (status["generation"], status["experts"]) == (2, ["odd"]) and "questions" not in status
    history = printed(call("history", "--json", "--question", "parity"))
    assert [r["number"] for r in history] == [1, 2]
    assert len(printed(call("history", "--json"))) == 1
    rolled_back = printed(call("rollback", "--question", "parity", "--json"))
    assert rolled_back == {"generation": 1, "experts": ["odd"]}
    assert printed(call("gc", "--question", "parity", "--json"))["generations"] == [2]
    assert call("evaluate", "--question", "parity")[0] == 0


def test_experts_are_listed_and_switched_off_whatever_they_answer(two_questions, call) -> None:
    listed = {x["id"]: x for x in printed(call("list-experts", "--json"))}
    assert listed["odd"]["question"] == "parity" and listed["odd"]["state"] == "attached"
    assert listed["range1"]["question"] is None and listed["range1"]["state"] == "attached"
    assert "question" in call("list-experts")[1]
    only = printed(call("list-experts", "--json", "--question", "parity"))
    assert [x["id"] for x in only] == ["odd"]
    assert "redhost recompose --question parity" in call("disable", "odd")[1]
    assert "redhost recompose --question parity" in call("recompose", "--accept")[1]
    assert "redhost recompose --question parity" in call("status", "--question", "parity")[1]
    assert "odd" not in printed(call("recompose", "--json"))["experts"]


def test_a_name_that_is_none_or_unknown_is_one_line(two_questions, call) -> None:
    for name, code, words in (
        ("No Name", 2, "'No Name'"),
        ("pairty", 3, "Did you mean 'parity'?"),
    ):
        done = call("predict", TEXT, "--question", name)
        assert done[0] == code and words in done[2] and done[2].count("\n") == 1
        assert "recompose" not in done[2]  # that would compose what was mistyped
    code, _, err = call("recompose", "--question", "other")
    assert code == 3 and "redhost recompose --question parity" in err


def test_a_new_home_in_a_folder_of_questions_is_refused_before_it_is_made(
    call, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("recompose", "--home", "questions/demo")
    assert (code, out, err.count("\n")) == (2, "", 1) and "--question demo" in err
    assert list(tmp_path.iterdir()) == []


def test_a_plan_with_a_question_is_trained_for_it(two_questions, call, tmp_path) -> None:
    assert call("new-expert", "even", "--question", "parity", "--backbone", "tiny")[0] == 0
    rows = [{"text": f"What is {n} plus 2?", "label": "ab"[n % 2]} for n in range(80)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    manifest = printed(
        call("train-expert", "red-expert-even", "--data", "rows.jsonl", "--epochs", "1", "--json")
    )
    assert (manifest["question"], manifest["schema"]) == ("parity", "redhost.expert/1")
    assert call("new-expert", "x", "--question", "No Name")[0] == 2
    assert not (tmp_path / "red-expert-x").exists()


def test_a_wheel_joins_and_leaves_the_composition_of_its_question(
    home, make_venv, draft, tmp_path
) -> None:
    venv = make_venv(tmp_path / "venv")
    (tmp_path / "moved").mkdir()
    odd, even = (draft(name, **PARITY).write(tmp_path) for name in ("odd", "even"))
    moved = draft("odd", version="0.2.0").write(tmp_path / "moved")
    before = (home / "redhost.lock").read_bytes()
    added, _, refused, elsewhere, removed, status = venv.session(
        ("add", str(odd), "--json"),
        ("add", str(even), "--json", "--accept"),
        ("add", str(moved), "--json"),
        ("add", str(odd), "--question", "other"),
        ("remove", "even", "--json", "--accept"),
        ("status", "--json", "--question", "parity"),
        home=home,
    )
    assert set(printed(added)["receipt"]["experts"]) == {"odd"}
    assert refused[0] == 1 and "another question" in refused[2]
    assert elsewhere[0] == 1 and "question: expected 'other', found 'parity'" in elsewhere[2]
    assert printed(removed)["receipt"]["withdrawn"] == ["even"]
    assert printed(status)["experts"] == ["odd"]
    assert (home / "redhost.lock").read_bytes() == before
    assert not [*venv.site.glob("red_expert_even*")]
    shutil.rmtree(venv.folder)
