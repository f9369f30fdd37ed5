"""Authors' data: every format read, every fault named by its line, rows in one split each."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import redhost
from redhost.core.training.data import (
    CARD_PASSAGES,
    LONGEST_PASSAGE,
    read_table,
    split_documents,
    split_rows,
)
from redhost.registry.errors import UsageError

# -- files read ------------------------------------------------------------------------------------


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


def test_fields_have_the_names_you_give(tmp_path) -> None:
    path = write(tmp_path / "a.csv", "utterance,intent\nx,hello\n")
    [row] = read_table(path, text_field="utterance", label_field="intent")
    assert (row.text, row.label) == ("x", "hello")


@pytest.mark.parametrize("data", ['{"text": "x", "label": "a"}\n', "text,label\nx,a\n"])
def test_standard_input_may_be_either(monkeypatch, data) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    assert [r.text for r in read_table("-")] == ["x"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        read_table(tmp_path / "a.parquet")


FAULTS = {
    "empty": ("a.jsonl", "", "has no rows"),
    "missing field": (
        "a.jsonl",
        '{"text": "x", "label": "a"}\n{"label": "b"}\n',
        "line 2: expected a text in 'text', found no such field",
    ),
    "missing label": ("a.csv", "text,label\nx,a\ny\n", "line 3: expected a label in 'label'"),
    "not json": ("a.jsonl", '{"text": "x"\n', "line 1: expected a JSON object"),
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


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.jsonl: found No such file"):
        read_table(tmp_path / "none.jsonl")


# -- rows set aside --------------------------------------------------------------------------------

ROWS = [
    redhost.Row(text=f"{'red' if n % 2 else 'blue'} {n}", label="xy"[n % 2]) for n in range(240)
]


def test_rows_are_in_one_part_each_and_the_split_is_stable() -> None:
    splits = split_rows(ROWS)
    texts = [{r.text for r in p} for p in (splits.train, splits.valid, splits.fit, splits.gate)]
    assert sum(len(t) for t in texts) == 240 == len(set().union(*texts))
    assert (len(splits.fit), len(splits.gate)) == (30, 30)
    assert split_rows(ROWS[::-1]) == splits


def test_equal_texts_are_never_in_two_parts() -> None:
    splits = split_rows(ROWS + ROWS)
    texts = [{r.text for r in p} for p in (splits.train, splits.valid, splits.fit, splits.gate)]
    assert sum(len(t) for t in texts) == len(set().union(*texts))


def test_a_card_has_512_rows_where_the_data_allow() -> None:
    rows = [redhost.Row(text=f"t {n}", label="xy"[n % 2]) for n in range(2100)]
    splits = split_rows(rows)
    assert (len(splits.fit), len(splits.gate)) == (256, 256)


def test_every_label_keeps_a_row_to_train_on() -> None:
    rows = [*ROWS, redhost.Row(text="rare", label="z")]
    assert {r.label for r in split_rows(rows).train} == {"x", "y", "z"}


def test_one_label_is_no_task() -> None:
    with pytest.raises(UsageError, match="one label only: expected at least two, found x"):
        split_rows(ROWS[::2])


def test_no_rows_are_no_task_either() -> None:
    with pytest.raises(UsageError, match="no labels: expected at least two, found none"):
        split_rows([])


def test_validation_rows_must_not_be_training_rows() -> None:
    with pytest.raises(UsageError, match="stand in the training data too"):
        split_rows(ROWS, valid=ROWS[:3])


# -- documents set aside ---------------------------------------------------------------------------


def texts(rows) -> set[str]:
    return {r.text for r in rows}


def chapters(count: int, *, lines: int = 3) -> list[redhost.Row]:
    """Return documents of several rows each, no line of which stands in another."""
    return [
        redhost.Row(text=f"book {n} line {i}", label="", domain=f"book {n}")
        for n in range(count)
        for i in range(lines)
    ]


def test_documents_are_set_aside_whole() -> None:
    rows = chapters(40)
    splits = split_documents(rows)
    books = [
        {t.split(" line")[0] for t in texts(part)}
        for part in (splits.train, splits.valid, splits.fit, splits.gate)
    ]
    assert [len(b) for b in books] == [26, 4, 5, 5]
    assert len(set().union(*books)) == 40  # so no book is in two parts
    assert sum(map(len, (splits.train, splits.valid, splits.fit, splits.gate))) == len(rows)
    assert split_documents(rows[::-1]).train != () and texts(
        split_documents(rows[::-1]).gate
    ) == texts(splits.gate)


def test_no_passage_is_in_two_parts_though_documents_share_it() -> None:
    rows = [*chapters(40), *(redhost.Row(text="all say so", label="", domain=f"book {n}")
                             for n in range(40))]  # fmt: skip
    splits = split_documents(rows)
    each = [texts(p) for p in (splits.train, splits.valid, splits.fit, splits.gate)]
    assert sum(map(len, each)) == len(set().union(*each)) == 121
    assert "all say so" in texts(splits.fit)


def test_long_texts_are_cut_at_line_ends_and_lose_white_space_only() -> None:
    text = "\n".join(f"line {n} of a long text, {n * n}" for n in range(200))
    rows = [redhost.Row(text=f"{text}{n}", label="", domain=None) for n in range(5)]
    splits = split_documents(rows)
    assert all(len(t) <= LONGEST_PASSAGE for t in texts(splits.train))
    assert all(t.startswith("line ") for t in texts(splits.train))
    words = "x" * 3 * LONGEST_PASSAGE
    cut = split_documents([*rows, *(redhost.Row(text=words + str(n), label="") for n in range(9))])
    assert all(
        0 < len(t) <= LONGEST_PASSAGE for t in texts(cut.train) | texts(cut.fit) | texts(cut.gate)
    )


def test_a_card_shows_some_passages_of_all() -> None:
    splits = split_documents(chapters(100, lines=20))
    assert 0 < len(splits.fit) <= CARD_PASSAGES and 0 < len(splits.gate) <= CARD_PASSAGES


def test_validation_texts_of_ones_own_are_taken_less_what_is_set_aside() -> None:
    rows = chapters(20)
    aside = next(iter(split_documents(rows).gate))
    splits = split_documents(rows, valid=[redhost.Row(text="quite new", label=""), aside])
    assert texts(splits.valid) == {"quite new"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (chapters(4), "too few documents to set any aside: expected at least 5, found 4"),
        (
            [redhost.Row(text="same", label="", domain=str(n)) for n in range(9)],
            "the documents say the same: expected passages to learn from",
        ),
    ],
)
def test_documents_that_cannot_be_split_are_refused(rows, message) -> None:
    with pytest.raises(UsageError, match=message):
        split_documents(rows)


# -- the package -----------------------------------------------------------------------------------
