"""The rows of a file: writing them, and checking that all were answered."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from red_lab.arithmetic import prompt
from red_lab.newsgroups import rows

__all__ = ["TEXTS", "lost_and_doubled", "texts_of", "write_rows"]

WORDS = 8
"""Words of a short text."""

NUMBERS = range(1, 51)
"""The operands of sums."""

GROUP = 10_000
"""Rows of a Parquet file written at a time."""


def phrases() -> Iterator[str]:
    """Yield pieces of eight words of real posts: from the first word on, then from the second."""
    posts = [row.text.split() for row in rows("train")]
    for first in range(WORDS):
        for words in posts:
            for start in range(first, len(words) - WORDS + 1, WORDS):
                yield " ".join(words[start : start + WORDS])


def sums() -> Iterator[str]:
    """Yield questions of two numbers."""
    return (prompt(a, b) for a, b in itertools.product(NUMBERS, NUMBERS))


TEXTS = {"minilm": phrases, "tiny": sums}
"""The texts for each backbone."""


def texts_of(backbone: str, count: int) -> Iterator[str]:
    """Yield so many texts, starting over when they run out."""
    return itertools.islice(itertools.cycle(TEXTS[backbone]()), count)


def write_rows(path: Path, texts: Iterable[str]) -> None:
    """Write a row with ``id`` and ``text`` for each text, in the format of the suffix."""
    made = ({"id": n, "text": text} for n, text in enumerate(texts))
    if path.suffix == ".parquet":
        _write_parquet(path, made)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in made)
        else:
            table = csv.DictWriter(file, ["id", "text"])
            table.writeheader()
            table.writerows(made)


def _write_parquet(path: Path, made: Iterator[dict[str, Any]]) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    schema = arrow.schema([("id", arrow.int64()), ("text", arrow.string())])
    with parquet.ParquetWriter(path, schema) as file:
        while some := list(itertools.islice(made, GROUP)):
            file.write_table(arrow.Table.from_pylist(some, schema=schema))


def lost_and_doubled(
    answered: Iterable[Mapping[str, Any]], texts: Iterable[str]
) -> tuple[int, int, int]:
    """Return the numbers of rows that are lost, duplicated, or have another text.

    Args:
        answered: The answered rows.
        texts: All texts, in the order of their rows.
    """
    given, seen, doubled = list(texts), set[int](), 0
    other = 0
    for row in answered:
        n = int(row["id"])
        doubled += n in seen
        seen.add(n)
        other += not 0 <= n < len(given) or row["text"] != given[n]
    return len(given) - len(seen), doubled, other
