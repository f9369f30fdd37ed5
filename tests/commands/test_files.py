"""predict --in and --out: rows with their answers, in every format, however often stopped."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import Table, parquet
from warm_start import warm_command

import redhost
from redhost.commands import files, row_writers
from redhost.commands.files import FIELDS

TEXTS = tuple(f"What is {n} plus {n % 7 + 1}?" for n in range(30))


def rows(texts: Sequence[str] = TEXTS) -> list[dict[str, Any]]:
    return [{"id": n, "question": t, "naïve, key": f'"{n}", ok'} for n, t in enumerate(texts)]


def write(path: Path, given: Sequence[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in given), "utf-8")
    elif path.suffix == ".parquet":
        parquet.write_table(Table.from_pylist(list(given)), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, given[0], delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(given)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    if path.suffix == ".parquet":
        return list(parquet.read_table(path).to_pylist())
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def options(source: Path, target: Path) -> list[str]:
    return ["predict", "--in", str(source), "--out", str(target), "--text-field", "question"]


SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")


@pytest.mark.parametrize("into", SUFFIXES)
@pytest.mark.parametrize("of", SUFFIXES)
def test_rows_keep_what_they_had_and_get_what_predict_answers(
    call, home, tmp_path, of: str, into: str
) -> None:
    target = tmp_path / f"out{into}"
    code, out, _ = call(*options(write(tmp_path / f"in{of}", rows()), target))
    assert (code, out) == (0, f"{target}: 30 rows, generation 1\n")
    found, answers = read(target), redhost.Host.open(home).predict(TEXTS)
    for row, given, answer in zip(found, rows(), answers, strict=True):
        assert {k: str(row[k]) for k in given} == {k: str(v) for k, v in given.items()}
        assert row["answer"] == answer.label
        assert float(row["probability"]) == answer.probability
        assert row["expert"] == max(answer.weights, key=lambda k: answer.weights[k])
        assert float(row["weight"]) == max(answer.weights.values())
    assert not (tmp_path / f"out{into}.parts").exists()


def test_parquet_keeps_the_types_of_numbers(call, home, tmp_path) -> None:
    target = tmp_path / "out.parquet"
    assert call(*options(write(tmp_path / "in.parquet", rows()), target))[0] == 0
    assert [r["id"] for r in read(target)] == list(range(30))
    assert {type(r["declined"]) for r in read(target)} == {bool}


def test_label_sets_are_a_field_of_their_own(call, home, tmp_path) -> None:
    source, target = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    code, out, _ = call(*options(source, target), "--set", "90%", "--json")
    assert code == 0 and json.loads(out)["rows"] == 30
    expected = redhost.Host.open(home).predict(TEXTS, sets=0.9)
    assert [tuple(r["answers"]) for r in read(target)] == [a.labels for a in expected]


def test_a_set_that_cannot_be_leaves_nothing_in_the_way(call, home, tmp_path) -> None:
    command = options(write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl")
    code, _, err = call(*command, "--set", "0%")
    assert code == 2 and "a level between 0 and 1" in err
    assert call(*command)[0] == 0


def test_what_every_expert_answers_is_a_field_of_its_own(call, home, tmp_path) -> None:
    source, target = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    assert call(*options(source, target), "--each")[0] == 0
    for row, answer in zip(
        read(target), redhost.Host.open(home).predict(TEXTS, each=True), strict=True
    ):
        assert answer.by_expert is not None
        assert row["by_expert"] == msgspec.to_builtins(answer.by_expert)


def test_what_is_of_several_types_is_text_in_parquet_and_a_later_type_is_no_fault(
    call, home, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(files, "PART", 2)
    monkeypatch.setattr(row_writers, "GROUP", 2)
    cells = [
        {"note": None, "n": 1, "any": 1, "more": {"a": 1}},
        {"note": None, "n": 2, "any": True, "more": {"a": 2}},
        {"note": "late", "n": 2.5, "any": "x", "more": {"b": "y"}},
    ]
    given = [{"question": t, **c} for t, c in zip(TEXTS[:3], cells, strict=True)]
    target = tmp_path / "out.parquet"
    assert call(*options(write(tmp_path / "in.jsonl", given), target))[0] == 0
    found = read(target)
    assert [r["note"] for r in found] == [None, None, "late"]
    assert [r["n"] for r in found] == [1.0, 2.0, 2.5]
    assert [r["any"] for r in found] == ["1", "true", "x"]
    assert found[2]["more"] == {"a": None, "b": "y"}


def test_dates_numbers_and_bytes_of_parquet_go_into_every_format(call, home, tmp_path) -> None:
    row = {
        "question": TEXTS[0],
        "when": dt.datetime(2026, 1, 2, 3, 4, 5),
        "price": Decimal("1.50"),
        "raw": b"\xff",
    }
    source = write(tmp_path / "in.parquet", [row])
    for suffix in (".jsonl", ".csv"):
        assert call(*options(source, tmp_path / f"out{suffix}"))[0] == 0
        [found] = read(tmp_path / f"out{suffix}")
        assert [found[k] for k in ("when", "price", "raw")] == [
            "2026-01-02T03:04:05",
            "1.50",
            "/w==",
        ]
    assert call(*options(source, tmp_path / "out.parquet"))[0] == 0
    [row_read] = read(tmp_path / "out.parquet")
    assert {k: row_read[k] for k in row} == row


def test_a_pipe_is_refused_since_a_file_is_read_more_than_once(call, home, tmp_path) -> None:
    os.mkfifo(tmp_path / "in.csv")
    code, _, err = call(*options(tmp_path / "in.csv", tmp_path / "out.csv"))
    assert code == 2 and "found a pipe" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ([{"question": " "}, {"question": "x"}], ("line 1", "'question'", "' '")),
        ([{"text": "x"}], ("line 1", "no such field among 'text'", "--text-field")),
        ([{"question": "x", "answer": "y"}], ("'answer' already",)),
        ([], ("has no rows",)),
    ],
)
def test_a_file_that_cannot_be_answered_is_named_before_anything_is_computed(
    call, home, tmp_path, given, parts
) -> None:
    source, target = write(tmp_path / "in.jsonl", given), tmp_path / "out.csv"
    code, _, err = call(*options(source, target))
    assert code == 2 and all(part in err for part in parts)
    assert not target.exists() and not (tmp_path / "out.csv.parts").exists()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the texts that are answered from now on; one with `refuse` in it is refused."""
    answer, texts = redhost.ComposedModel.answer, list[str]()

    def noting(self: redhost.ComposedModel, given: Sequence[str], **more: Any) -> Any:
        if any("refuse" in text for text in given):
            raise redhost.UsageError("this text", found="too long")
        texts.extend(given)
        return answer(self, given, **more)

    monkeypatch.setattr(redhost.ComposedModel, "answer", noting)
    monkeypatch.setattr(files, "PART", 8)
    return texts


@pytest.mark.parametrize("into", SUFFIXES)
@pytest.mark.parametrize(
    ("bad", "named"), [(" ", "' '"), (5, "found 5"), (None, "None"), ("refuse me", "too long")]
)
def test_rows_before_one_without_an_answer_are_written_and_the_same_command_goes_on(
    call, home, tmp_path, computed, into: str, bad: object, named: str
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / f"out{into}"
    whole = tmp_path / f"whole{into}"
    assert call(*options(write(source, rows()), whole))[0] == 0
    given = rows()
    given[20]["question"] = bad
    code, out, err = call(*options(write(source, given), target))
    assert (code, out) == (1, "") and len(err.splitlines()) == 1
    assert (
        f"{source}, line 21" in err
        and named in err
        and f"{target} has the rows before it (20)" in err
    )
    assert [str(row["id"]) for row in read(target)] == [str(n) for n in range(20)]
    assert read(target) == read(whole)[:20]
    computed.clear()
    assert call(*options(write(source, rows()), target))[0] == 0
    assert target.read_bytes() == whole.read_bytes()
    assert {*TEXTS[:16]}.isdisjoint(computed) and not target.with_name(
        f"{target.name}.parts"
    ).exists()


def test_rows_before_a_line_that_is_no_row_are_in_the_output(call, home, tmp_path) -> None:
    source, target = write(tmp_path / "in.jsonl", rows()), tmp_path / "out.jsonl"
    source.write_text(source.read_text("utf-8") + '{"question": ', "utf-8")
    code, _, err = call(*options(source, target))
    assert code == 1 and "line 31" in err and len(read(target)) == 30


def test_an_output_that_was_changed_meanwhile_is_not_written_over(call, home, tmp_path) -> None:
    given = rows()
    given[20]["question"] = ""
    source, target = write(tmp_path / "in.jsonl", given), tmp_path / "out.jsonl"
    assert call(*options(source, target))[0] == 1
    target.write_text("mine")
    code, _, err = call(*options(write(source, rows()), target))
    assert code == 2 and "is there already" in err and target.read_text() == "mine"


def test_nothing_is_written_over_and_no_format_is_guessed(call, home, tmp_path) -> None:
    source = write(tmp_path / "in.csv", rows())
    code, _, err = call(*options(source, source))
    assert code == 2 and "is there already" in err
    code, _, err = call(*options(source, tmp_path / "out.xlsx"))
    assert code == 2 and ".parquet" in err
    assert call("predict", "--in", str(source))[0] == 2
    assert call("predict", "x", *options(source, tmp_path / "out.csv")[1:])[0] == 2
    assert call("predict")[0] == 2


def test_what_was_stopped_goes_on_only_with_the_same_options(
    call, home, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(files, "PART", 8)
    source, target = write(tmp_path / "in.csv", rows()), tmp_path / "out.csv"
    whole = tmp_path / "whole.csv"
    assert call(*options(source, whole))[0] == 0
    answered = list[int]()
    answer = redhost.ComposedModel.answer

    def stop(self: redhost.ComposedModel, texts: Sequence[str], **given: Any) -> Any:
        answered.append(len(texts))
        if sum(answered) > 16:
            raise KeyboardInterrupt
        return answer(self, texts, **given)

    monkeypatch.setattr(redhost.ComposedModel, "answer", stop)
    assert call(*options(source, target))[0] != 0
    assert sorted(p.name[:6] for p in (tmp_path / "out.csv.parts").iterdir()) == [
        "000000",
        "000001",
        "run.js",
    ]
    code, _, err = call(*options(source, target), "--set", "90%")
    assert code == 2 and "another sets" in err
    monkeypatch.setattr(redhost.ComposedModel, "answer", answer)
    assert call(*options(source, target))[0] == 0
    assert target.read_bytes() == whole.read_bytes()
    assert [row["id"] for row in read(target)] == [str(n) for n in range(30)]


def test_a_killed_run_loses_no_row_and_doubles_none(home, tmp_path) -> None:
    texts = [f"What is {n} plus {n % 89}?" for n in range(3 * files.PART + 5)]
    source, target = write(tmp_path / "in.jsonl", rows(texts)), tmp_path / "out.jsonl"
    command = warm_command("-P", "-m", "redhost", *options(source, target))
    environment = {**os.environ, "REDHOST_HOME": str(home), "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "out.jsonl.parts"
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    while not [*folder.glob("000000-*.jsonl")] and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [*folder.glob("000000-*.jsonl")] and not target.exists()
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert f"{len(texts):,} rows".encode() in done.stdout
    assert [row["id"] for row in read(target)] == list(range(len(texts)))
    assert set(FIELDS) <= read(target)[0].keys()
