"""Tables of every library, answered and returned as tables of that library."""

from __future__ import annotations

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import redhost
from redhost.frames import answer
from redhost.registry.errors import InputTypeError

KINDS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "datasets": datasets.Dataset.from_dict,
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_what_they_had_and_get_answers(kind, home, sums) -> None:
    host, texts = redhost.Host.open(home), sums(12)
    table = KINDS[kind]({"id": list(range(12)), "question": texts})
    found = answer(host, table, text="question", sets=0.9, each=True)
    assert type(found) is type(table)
    columns = {
        c: list(pd.Series(found[c])) if kind != "pyarrow" else found[c].to_pylist()
        for c in ("id", "question", "answer", "probability", "expert", "declined")
    }
    expected = host.predict(texts)
    assert columns["id"] == list(range(12)) and columns["question"] == texts
    assert columns["answer"] == [a.label for a in expected]
    assert columns["probability"] == [a.probability for a in expected]
    assert columns["declined"] == [a.declined for a in expected]
    names = found.column_names if kind in ("pyarrow", "datasets") else list(found.columns)
    assert names[-2:] == ["answers", "by_expert"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_rows_gets_the_columns(kind, home) -> None:
    found = answer(redhost.Host.open(home), KINDS[kind]({"text": []}))
    names = found.column_names if kind in ("pyarrow", "datasets") else list(found.columns)
    assert names == ["text", "answer", "probability", "expert", "weight", "declined"]
    assert len(found) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_named_by_row_and_column(kind, home) -> None:
    host = redhost.Host.open(home)
    with pytest.raises(redhost.errors.UnknownNameError):
        answer(host, KINDS[kind]({"text": ["x"]}), text="texts")
    with pytest.raises(redhost.UsageError, match="row 1, column 'text'"):
        answer(host, KINDS[kind]({"text": ["x", " "]}))
    with pytest.raises(redhost.UsageError, match="'weight' already"):
        answer(host, KINDS[kind]({"text": ["x"], "weight": [1]}))
    with pytest.raises(InputTypeError):
        answer(host, {"text": ["x"]})


@pytest.mark.parametrize("names", [["text", "text"], [0, 1]])
def test_columns_of_pandas_without_names_of_their_own_are_refused(names, home) -> None:
    table = pd.DataFrame([["x", "y"]], columns=names)
    with pytest.raises(redhost.UsageError, match="text"):
        answer(redhost.Host.open(home), table)
