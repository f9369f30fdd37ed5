"""Answer the rows of a file, in the file's own format, and keep the fields of its rows.

Rows are read twice: first to check that every row has a text, to count rows and to collect fields;
then to answer them. Answers are stored in parts next to the output until all are there. Each part
is complete or absent, so that an interrupted run continues after the last one, and no row is lost
or answered twice. At most one part of the file is in memory.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import msgspec

from ..core.training.rows import read_cells, text_of
from ..registry.atomic import (
    delete_dir,
    read_struct,
    replace,
    reporting,
    sync_file,
    write_atomic,
    write_struct,
)
from ..registry.errors import UsageError
from .row_writers import Cells, writer_of

if TYPE_CHECKING:
    from ..core.model.composed import Answer
    from ..core.model.questions import Questions
    from ..core.types import Progress

PART = 1024
"""Rows of a part: the most that are computed again after an interruption."""

FIELDS = ("answer", "probability", "expert", "weight", "declined")
"""Fields for every row: the label or number, its probability, the heaviest column, its weight."""

SET = "answers"
"""Fields added for label sets, and for tasks with any number of labels."""

SCORES = "scores"
"""Field added for tasks with any number of labels: the probability of each."""

SPANS = "spans"
"""Field added for spans."""

EACH = "by_expert"
"""Field added for the answers of every expert alone."""

QUESTIONS = "questions"
"""Fields added for named questions: these of each."""


class FileOptions(TypedDict):
    """How rows are answered.

    Attributes:
        text: The field with a row's text.
        sets: How often the right label is to be in a row's label set; None without sets.
        each: Whether the answers of every expert alone are added.
    """

    text: str
    sets: float | None
    each: bool


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that stored parts belong to; it continues only if nothing of it has changed.

    Attributes:
        source: SHA-256 of the file.
        rows: Its number of rows.
        fields: The fields of its rows, in the order of their first appearance.
        text: The field with the text.
        sets: How often the right label is to be in a row's label set; None without sets.
        generation: The generation that answers.
        each: Whether the answers of every expert alone are added.
        questions: The generations that answer the named questions, by name.
    """

    source: str
    rows: int
    fields: tuple[str, ...]
    text: str
    sets: float | None
    generation: int | None
    each: bool = False
    questions: dict[str, int | None] = {}


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of an answered file.

    Attributes:
        rows: The number of rows answered.
        declined: How many of them were declined as outside every domain.
        cut: How many were truncated.
        limit: The number of tokens read of these; None if none was truncated.
    """

    rows: int
    declined: int
    cut: int
    limit: int | None


def answer_file(
    model: Questions,
    source: Path,
    target: Path,
    *,
    progress: Progress,
    **options: Unpack[FileOptions],
) -> Answered:
    """Answer every row of a file, and write the rows with their answers.

    Args:
        model: The model that answers.
        source: The file: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``.
        target: The output file; its suffix selects one of these formats.
        progress: Called with the number of rows answered.
        options: See `FileOptions`.

    Raises:
        UsageError: If a row has no text, the options do not suit the task, the target exists or
            has another suffix, or parts of another run lie next to it.
    """
    write = writer_of(target)
    if not source.is_file():
        raise UsageError(
            f"{source} is read more than once",
            expected="a file",
            found="a pipe or a device",
            hint="Write what comes out of it to a file first.",
        )
    if target.exists():
        raise UsageError(
            f"{target} is there already",
            expected="a file that is not",
            found=f"{target.stat().st_size:,} bytes",
            hint="Give --out another name, or remove it.",
        )
    level = model.levels(options["sets"]).get(None)
    added = _added(model, sets=level is not None, each=options["each"])
    run = _read_through(source, model, added, **options)
    parts = target.with_name(f"{target.name}.parts")
    _begin(parts, run)
    files = [parts / f"{n:06}.jsonl" for n in range(-(-run.rows // PART))]
    rows = (cells for _, cells in read_cells(source))
    for n, file in enumerate(files, start=1):
        some = list(islice(rows, PART))
        if not file.exists():
            answers = model.answer(
                [cells[run.text] for cells in some], sets=run.sets, each=run.each
            )
            write_atomic(file, b"".join(map(_encoded, answers)))
        progress(min(n * PART, run.rows), run.rows)
    done = _counted(files)
    with reporting(target):
        whole = parts / f"whole{target.suffix}"
        write(whole, [*run.fields, *added], partial(_joined, source, files))
        sync_file(whole)
        replace(whole, target)
    delete_dir(parts)
    return done


def _read_through(
    source: Path, model: Questions, added: Sequence[str], **options: Unpack[FileOptions]
) -> Run:
    """Read every row once, before anything is computed."""
    fields, count, text = dict[str, None](), 0, options["text"]
    for where, cells in read_cells(source):
        text_of(cells, text, f"{source}, {where}")
        fields.update(dict.fromkeys(cells))
        count += 1
    if not count:
        raise UsageError(f"{source} has no rows", expected=f"rows with {text!r}")
    if taken := [name for name in added if name in fields]:
        raise UsageError(
            f"{source} has a field {taken[0]!r} already",
            expected="other names than those of the answers",
            found=", ".join(taken),
            hint="Rename it, or answer the file that it was made from.",
        )
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Run(
        source=digest,
        rows=count,
        fields=tuple(fields),
        generation=model.own.generation if model.own else None,
        questions=model.generations,
        **options,
    )


def _begin(parts: Path, run: Run) -> None:
    """Create the folder of parts, or check that the existing one belongs to the same run."""
    file, hint = parts / "run.json", f"Remove {parts} to begin anew."
    known = read_struct(file, Run, hint=hint)
    if known is None:
        write_struct(file, run)
    elif known != run:
        other = [n for n in Run.__struct_fields__ if getattr(known, n) != getattr(run, n)]
        raise UsageError(
            f"{parts} holds a part of other answers",
            expected="the same file, options and generation",
            found=f"another {', '.join(other)}",
            hint=hint,
        )


def _added(model: Questions, *, sets: bool, each: bool) -> tuple[str, ...]:
    """Return the fields that are added to every row."""
    several = model.own is not None and model.own.bus.task.head.several
    named = bool(model.named)
    spans = model.own is not None and model.own.bus.task.name == "spans"
    more = {
        SET: sets or several,
        SCORES: several,
        SPANS: spans,
        EACH: each,
        QUESTIONS: named,
    }
    return (*FIELDS, *(name for name, wanted in more.items() if wanted))


def _encoded(answer: Answer) -> bytes:
    """Return a line of a part; the last field is where the text was truncated."""
    from ..core.model.composed import answer_fields

    return msgspec.json.encode({**answer_fields(answer), "cut": answer.cut}) + b"\n"


def _joined(source: Path, files: Sequence[Path]) -> Iterator[Cells]:
    """Yield every row with its answer."""
    for (_, cells), line in zip(read_cells(source), _lines(files), strict=True):
        answer = msgspec.json.decode(line)
        del answer["cut"]
        yield {**cells, **answer}


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    return chain.from_iterable(file.read_bytes().splitlines() for file in files)


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an answer that are counted."""

    declined: bool
    cut: int | None


def _counted(files: Sequence[Path]) -> Answered:
    """Count the answers of all parts."""
    count, limit, decode = Counter[str](), None, msgspec.json.Decoder(_Counted).decode
    for answer in map(decode, _lines(files)):
        count.update(rows=1, declined=answer.declined, cut=answer.cut is not None)
        limit = answer.cut or limit
    return Answered(rows=count["rows"], declined=count["declined"], cut=count["cut"], limit=limit)
