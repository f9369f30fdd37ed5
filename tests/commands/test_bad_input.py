"""Files that are not what a command reads: one line that says what and where, nothing written."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from pyarrow import Table, parquet

import redhost

GOOD = "text,label\nWhat is 8 plus 9?,17\n"

FAULTS: dict[str, tuple[str, str | bytes, tuple[str, ...]]] = {
    "another column": ("a.csv", GOOD.replace("text", "Text"), ("line 2", "'Text'", "--text-field")),
    "latin-1": ("a.csv", f"{GOOD}é,1\n".encode("latin-1"), ("line 3", "0xe9 at column 1", "iconv")),
    "utf-16": ("a.csv", GOOD.encode("utf-16"), ("line 1", "UTF-16", "iconv -f utf-16")),
    "a byte of zero": (
        "a.csv",
        GOOD.replace("8", "\0"),
        (
            "line 2",
            "0x00 at column 9",
        ),
    ),
    "empty": ("a.csv", "", ("no rows", "'text'")),
    "a header alone": ("a.csv", "text,label\n", ("no rows",)),
    "an empty text": ("a.csv", f"{GOOD},1\n", ("line 3", "'text'", "''")),
    "a number": ("a.jsonl", '{"text": 5, "label": "1"}\n', ("line 1", "'text'", "5")),
    "nested": ("a.jsonl", '{"data": {"text": "x"}}\n', ("line 1", "'data'", "--text-field")),
    "an array": ("a.json", '[{"text": "x"}]', ("line 1", "found list", "one object a line")),
    "half a character": ("a.jsonl", '{"text": "\\udfff", "label": "1"}', ("line 1", "\\udfff")),
    "a long row": ("a.csv", f"{GOOD}a,b,c\n", ("line 3", "2 cells", "found 3")),
    "a short row": ("a.csv", f"{GOOD}a\n", ("line 3", "2 cells", "found 1")),
    "columns of one name": ("a.csv", f"text,{GOOD}", ("line 1", "'text' more than once")),
    "gzip": ("a.csv.gz", gzip.compress(GOOD.encode()), ("gzip", "gunzip")),
    "no parquet": ("a.parquet", GOOD, ("cannot read", "parquet")),
}


@pytest.fixture
def commands(home, call) -> dict[str, list[str]]:
    """Every command that reads rows, up to the name of the file."""
    assert call("new-expert", "seven", "--backbone", "tiny")[0] == 0
    return {
        "predict": ["predict", "--out", "out.jsonl", "--in"],
        "evaluate": ["evaluate", "--data"],
        "train-expert": ["train-expert", "red-expert-seven", "--data"],
        "new-backbone": ["new-backbone", "mine", "--from", "hf:x", "--data"],
        "port": ["port", "range1", "--to", "tiny", "--rows"],
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("pack",),
            "'redhost pack' lacks PROJECT...: expected 'redhost pack [OPTIONS] PROJECT...', found "
            "none. All options: 'redhost pack --help'.",
        ),
        (("add",), "lacks WHEEL|NAME: expected 'redhost add [OPTIONS] WHEEL|NAME', found none. "),
        (("new-plugin", "x"), "lacks --kind: expected --kind [form|router|task], found none. All"),
        (("trust", "--revoke"), "lacks DIST: expected 'redhost trust [OPTIONS] DIST', found none."),
        (("new-plugin", "x", "--kind", "ruter"), "'ruter' is not one of 'form', 'router', 'task'."),
        (("predict", "--in", "x.csv", "--out", "y.csv"), "File 'x.csv' does not exist. All opt"),
        (("train-expert", "x", "--data", "y"), "Directory 'x' does not exist. "),
        (("recompose", "--ruter", "x"), "'--router'"),
        (("fleet", "statsu"), "No such command 'statsu'. Did you mean 'status'? All options: "),
        (("statsu",), "unknown command 'statsu'. Did you mean 'status'?"),
    ],
)
def test_wrong_usage_is_one_line(call, arguments: tuple[str, ...], line: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("redhost: ")
    assert line in err


def test_a_group_without_a_command_lists_them(call) -> None:
    _, out, err = call("fleet")
    assert "Show the stages" in out + err and "All options" not in err


def test_a_task_that_is_typed_wrongly_is_suggested(call) -> None:
    code, _, err = call("new-backbone", "x", "--from", "hf:x", "--task", "regresion")
    assert (code, err.count("\n")) == (2, 1) and "Did you mean 'regression'? Known: " in err


def snapshot(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_command_names_file_and_place_and_writes_nothing_but_answers_before_it(
    commands, call, tmp_path, fault
) -> None:
    name, data, parts = FAULTS[fault]
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    before, answers = snapshot(tmp_path), tmp_path / "out.jsonl"
    for command, arguments in commands.items():
        code, out, err = call(*arguments, name)
        answered = command == "predict" and "line 3" in err  # the first row is as it should be
        assert (code, out, len(err.splitlines())) == (1 if answered else 2, "", 1), (command, err)
        assert all(part in err for part in (name, *parts)), (command, err)
        if answered:
            [row] = map(json.loads, answers.read_text().splitlines())
            assert row["answer"] == "17"
            answers.unlink()
            shutil.rmtree(tmp_path / "out.jsonl.parts")
    assert snapshot(tmp_path) == before


def test_texts_that_are_cut_are_counted_once(home, call, tmp_path) -> None:
    long = "What is 8 plus 9? " * 2000
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"text": t, "label": "17"}) + "\n" for t in (long, "What is 8 plus 9?", long)
        )
    )
    limit = redhost.Host.open(home).composed.backbone.trunk.longest
    for command in (
        ("predict", "--in", "a.jsonl", "--out", "b.jsonl"),
        ("evaluate", "--data", "a.jsonl"),
    ):
        code, _, err = call(*command)
        assert (code, err) == (0, f"2 of 3 texts cut after {limit} tokens\n"), command


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"text": ["x", None], "label": ["1", "1"]}, ("row 2", "'text'", "None")),
        ({"text": [b"x"], "label": ["1"]}, ("row 1", "'text'", "b'x'")),
        ({"words": ["x"], "label": ["1"]}, ("row 1", "'words'", "--text-field")),
    ],
)
def test_rows_of_parquet_are_named_too(commands, call, tmp_path, columns, parts) -> None:
    parquet.write_table(Table.from_pydict(columns), tmp_path / "a.parquet")
    for command, arguments in commands.items():
        code, _, err = call(*arguments, "a.parquet")
        answered = command == "predict" and "row 2" in err
        assert code == (1 if answered else 2) and all(part in err for part in parts), err


@pytest.mark.parametrize(
    "data",
    [
        '{"range1": "much"}',
        "[1]",
        '{"range1": 2}',
        "{}",
        '{"range9": 0.5}',
        '{"range1": 0.5',
        "range1=x",
        "range1=.5,range1=.5",
    ],
)
def test_shares_that_are_none_are_refused(home, call, tmp_path, data) -> None:
    given = data
    if data[0] in "[{":
        (tmp_path / "shares.json").write_text(data)
        given = "shares.json"
    code, _, err = call("recompose", "--prior", given)
    assert code in {2, 3} and len(err.splitlines()) == 1
    assert ("range9" if "range9" in data else "prior") in err
    assert call("recompose", "--prior", "range1=0.5", "--dry-run")[0] == 0


def test_what_is_refused_early_has_a_next_step(call, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "in.csv").write_text(GOOD)
    for arguments, step in (
        (("new-expert", "Bad Name!"), "Such as 'bad-name'."),
        (("predict", "a", ""), "found ''. Leave it out."),
        (("predict",), "--in rows.csv --out answers.csv."),
        (("recompose", "--home", str(tmp_path / "file" / "home")), "Check the path"),
    ):
        code, out, err = call(*arguments)
        assert (code != 0, out, err.count("\n")) == (True, "", 1) and step in err
    assert not (tmp_path / "red-expert-Bad Name!").exists()
