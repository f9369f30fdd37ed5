"""Authors' files: every format read, every fault named by its line and with its fields."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from redhost.core.bus.label_set_head import SigmoidHead
from redhost.core.training.rows import read_rows, read_table
from redhost.registry.errors import UsageError


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_json_lines_and_csv_give_the_same_rows(tmp_path) -> None:
    one = write(tmp_path / "a.jsonl", '{"text": "x", "label": 1}\n\n{"text": "y, z", "label": "b"}')
    two = write(tmp_path / "a.csv", 'text,label\nx,1\n"y, z",b\n')
    assert read_table(one) == read_table(two)
    assert [(r.text, r.label, r.domain) for r in read_table(one)] == [
        ("x", "1", None),
        ("y, z", "b", None),
    ]


def test_white_space_around_a_label_is_none_of_it(tmp_path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nx,sci.med\ny,sci.med \n")
    assert {r.label for r in read_table(path)} == {"sci.med"}
    with pytest.raises(UsageError, match="line 2: expected a label"):
        read_table(write(tmp_path / "b.csv", "text,label\nx, \n"))


DECOMPOSED, COMPOSED = "cafe\u0301", "caf\u00e9"


@pytest.mark.parametrize("task", ["classification", "multi-label"])
def test_labels_that_print_alike_are_one_label_and_the_reader_says_so(
    tmp_path, caplog, task
) -> None:
    path = write(
        tmp_path / "a.csv", f"text,label\n{DECOMPOSED},{DECOMPOSED}\ny,{COMPOSED}\nz,plain\n"
    )
    rows = read_rows(path, task=task)
    assert [r.label for r in rows] == [COMPOSED, COMPOSED, "plain"]
    assert rows[0].text == DECOMPOSED  # texts are read as they are
    assert f"{path}: 1 labels are read in Unicode's composed form" in caplog.text


def test_labels_in_lists_are_composed_too(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    labels = [DECOMPOSED, "b"], [COMPOSED]
    write(path, "".join(json.dumps({"text": "x y", "label": y}) + "\n" for y in labels))
    assert all(COMPOSED in r.label for r in read_rows(path, task="multi-label"))


def test_fields_have_the_names_you_give(tmp_path) -> None:
    path = write(tmp_path / "a.csv", "utterance,intent\nx,hello\n")
    [row] = read_table(path, text_field="utterance", label_field="intent")
    assert (row.text, row.label) == ("x", "hello")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tsv", "text\tlabel\nx, y\ta\n"),
        ("a.TAB", "text\tlabel\nx, y\ta\n"),
        ("a.txt", "text\tlabel\nx, y\ta\n"),
        ("a.data", '\n{"text": "x, y", "label": "a"}\n'),
        ("a", 'text,label\n"x, y",a\n'),
        ("a.csv", b'\xef\xbb\xbftext,label\r\n"x, y",a\r\n'),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "x, y", "label": "a"}\r\n'),
    ],
)
def test_the_name_or_the_first_line_tells_the_format(tmp_path, name, data) -> None:
    [row] = read_table(write(tmp_path / name, data))
    assert (row.text, row.label) == ("x, y", "a")


def test_sets_of_labels_are_lists_or_have_a_sign_between_them(tmp_path) -> None:
    sets = ["a|b", "none", "7", r"\none", r"a\|b|c"]
    lists = '{"text": "x", "label": ["b", "a"]}\n{"text": "y", "label": []}\n'
    lists += '{"text": "z", "label": [7]}\n{"text": "u", "label": ["none"]}\n'
    lists += '{"text": "v", "label": ["c", "a|b"]}'
    table = "text,label\nx,b|a\ny,none\nz,7\nu,\\none\nv,c|a\\|b\n"
    for name, data in (("a.jsonl", lists), ("a.csv", table)):
        rows = read_rows(write(tmp_path / name, data), task="multi-label")
        assert [r.label for r in rows] == sets
    table = pytest.importorskip("pyarrow").Table.from_pylist(
        [{"text": "x", "label": ["b", "a"]}, {"text": "y", "label": []}]
    )
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    rows = read_table(tmp_path / "a.parquet", head=SigmoidHead())
    assert [r.label for r in rows] == sets[:2]


@pytest.mark.parametrize("cell", ['""', "null", '[""]', '"a||b"', "7.5", "{}"])
def test_what_is_no_set_of_labels_is_named_by_its_line(tmp_path, cell) -> None:
    path = write(
        tmp_path / "a.jsonl", f'{{"text": "x", "label": "a"}}\n{{"text": "y", "label": {cell}}}'
    )
    with pytest.raises(UsageError) as e:
        read_rows(path, task="multi-label")
    assert e.value.problem == f"{path}, line 2" and "[]" in (e.value.hint or "")
    with pytest.raises(UsageError):  # and a list is no one label
        read_rows(
            write(tmp_path / "b.jsonl", '{"text": "x", "label": ["a"]}'), task="classification"
        )


@pytest.mark.parametrize(("task", "labels"), [("classification", ["a"]), ("generation", [""])])
def test_rows_are_read_as_the_task_has_them(tmp_path, task, labels) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "x", "label": "a", "domain": "d", "slice": "s"}\n')
    assert [r.label for r in read_rows(path, task=task)] == labels
    [row] = read_rows(path, task=task, domain_field="slice")
    assert row.domain == "s"
    with pytest.raises(UsageError) as e:
        read_rows(path, task=task, domain_field="expert")
    assert "'slice'" in e.value.found and "--domain-field" in e.value.hint


def test_numbers_are_checked_by_line(tmp_path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nx,1.5\ny,many\n")
    with pytest.raises(UsageError, match="line 3: expected a finite number"):
        read_rows(path, task="regression")


@pytest.mark.parametrize("data", ['{"text": "x", "label": "a"}\n', "text,label\nx,a\n"])
def test_standard_input_may_be_either(monkeypatch, data) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    assert [r.text for r in read_table("-")] == ["x"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"redhost\[parquet\]"):
        read_table(tmp_path / "a.parquet")


FAULTS = {
    "no such column": (
        "a.csv",
        "sentence,intent\nx,a\n",
        "line 2: expected a text in 'text', found no such field among 'sentence', 'intent'. Name "
        "the field with --text-field.",
    ),
    "no such label": (
        "a.jsonl",
        '{"text": "x", "intent": "a"}\n',
        "found no such field among 'text', 'intent'. Name the field with --label-field.",
    ),
    "an unquoted comma": (
        "a.csv",
        "text,label\nx, y,a\n",
        "line 2: expected 2 cells, as in the first line, found 3",
    ),
    "a key twice": (
        "a.jsonl",
        '{"text": "x", "label": "a"}\n{"text": "y", "label": "a", "text": "z"}\n',
        "line 2: expected a JSON object, found the key 'text' stands twice",
    ),
    "an array": ("a.json", '[{"text": "x", "label": "a"}]', "line 1: expected a JSON object"),
    "utf-16": (
        "a.csv",
        "text,label\nx,a\n".encode("utf-16"),
        "line 1: expected UTF-8, found byte 0xff at column 1, as in UTF-16",
    ),
    "utf-16 without a mark": (
        "a.tsv",
        "text\tlabel\nx\ta\n".encode("utf-16-le"),
        "line 1: expected UTF-8, found byte 0x00 at column 2, as in UTF-16",
    ),
    "utf-32": (
        "a.csv",
        "text,label\nx,a\n".encode("utf-32"),
        "as in UTF-32. Convert the file, e.g. with iconv -f utf-32 -t utf-8",
    ),
    "a byte of zero": (
        "a.csv",
        "text,label\nx\0,a\n",
        "line 2: expected UTF-8, found byte 0x00 at column 2. Remove it",
    ),
    "half a character": (
        "a.jsonl",
        '{"text": "\\ud800", "label": "a"}\n',
        "line 1: expected whole characters, found \\ud800, half of a pair",
    ),
    "a workbook": ("a.xlsx", b"PK\x03\x04\x14\x00\x06\xf7", "found a zip archive or a workbook"),
    "gzip": ("a.csv.gz", gzip.compress(b"text,label\nx,a\n"), "found a gzip file. Unpack it"),
    "gzip by another name": ("a.csv", gzip.compress(b"text,label\nx,a\n"), "found a gzip file"),
    "parquet by another name": ("a.csv", b"PAR1\x15\x04", "a name that ends in .parquet"),
    "columns of one name": (
        "a.csv",
        "text,text,label\nx,y,a\n",
        "line 1: expected fields of different names, found 'text' more than once",
    ),
    "semicolons": (
        "a.csv",
        "text;label\nx;a\n",
        "line 2: expected a text in 'text', found no such field among 'text;label'. Is ';' between",
    ),
    "commas in a tsv": ("a.tsv", "text,label\nx,a\n", "Is ',' between its cells?"),
    "old line ends": ("a.csv", "text,label\rx,a\r", "line 1: expected line ends"),
    "an open quote": ("a.csv", 'text,label\n"x,a\ny,b\n', "expected cells whose double quotes"),
    "a quote within": ("a.csv", 'text,label\n"x "y" z",a\n', "line 2: expected cells whose double"),
    "a long cell": (
        "a.csv",
        "text,label\nx,a\n" + "x" * 200_000 + ",a\n",
        "line 3: expected at most 131,072 characters in a cell, found more",
    ),
    "empty": (
        "a.jsonl",
        "",
        "has no rows: expected rows with 'text' and 'label'. Write a JSON object a line, or CSV",
    ),
    "sets for one label": (
        "a.jsonl",
        '{"text": "x", "label": ["a"]}\n',
        "line 1: expected a label in 'label', found ['a']. Sets of labels need a backbone of",
    ),
    "missing field": (
        "a.jsonl",
        '{"text": "x", "label": "a"}\n{"label": "b"}\n',
        "line 2: expected a text in 'text', found no such field",
    ),
    "missing label": (
        "a.csv",
        "text,label\nx,a\ny,\n",
        "line 3: expected a label in 'label', found ''. Correct the row, or remove it.",
    ),
    "a short row": (
        "a.csv",
        "text,label\nx,a\ny\n",
        "line 3: expected 2 cells, as in the",
    ),
    "not json": ("a.jsonl", '{"text": "x"\n', "line 1: expected a JSON object"),
    "cut json": (
        "a.jsonl",
        '{"text": "x", "label": "a"}\n{"text":\n',
        "line 2: expected a JSON object, found Expecting value at column 10",
    ),
    "an open text": (
        "a.jsonl",
        '{"text": "x',
        "line 1: expected a JSON object, found Unterminated string starting at column 10",
    ),
    "a list": ("a.jsonl", "[1]\n", "line 1: expected a JSON object, found list"),
    "encoding": (
        "a.jsonl",
        b'{"text": "caf\xe9", "label": "a"}\n',
        "line 1: expected UTF-8, found byte 0xe9 at column 14",
    ),
    "nan": (
        "a.jsonl",
        '{"text": "x", "label": NaN}\n',
        "line 1: expected a finite label in 'label', found nan",
    ),
    "a long line": (
        "a.jsonl",
        '{"text": "' + "x" * 10_000_000 + '", "label": "a"}\n',
        "line 1 is too long: expected at most 1,048,576 bytes, found 10,000,0",
    ),
    "blank text": ("a.jsonl", '{"text": "  ", "label": "a"}\n', "line 1: expected a text"),
    "true": ("a.jsonl", '{"text": "x", "label": true}\n', "line 1: expected a label"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_data_is_one_clear_line(tmp_path, fault) -> None:
    name, data, words = FAULTS[fault]
    with pytest.raises(UsageError) as e:
        read_table(write(tmp_path / name, data))
    assert words in str(e.value) and "\n" not in str(e.value)


def test_columns_without_a_name_may_be_several(tmp_path) -> None:
    [row] = read_table(write(tmp_path / "a.csv", "text,label,,\nx,a,,\n"))
    assert (row.text, row.label) == ("x", "a")


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.jsonl: found No such file"):
        read_table(tmp_path / "none.jsonl")
