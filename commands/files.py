"""Answer the rows of a file, in the file's own format, and keep the fields of its rows.

Rows are read twice: first to check that every row has a text, to count rows and to collect fields;
then to answer them. Answers are stored in parts next to the output until all are there. Each part
is complete or absent, and named by its texts, so that an interrupted run continues after the last
one, and no row is lost or answered twice. If a row cannot be read or answered, the output gets the
rows before it, and the parts stay for the run after the row was corrected. At most one part of the
file is in memory.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..core.training.rows import read_cells, text_of
from ..registry.atomic import (
    delete_dir,
    read,
    read_struct,
    replace,
    reporting,
    sync_file,
    write_atomic,
    write_struct,
)
from ..registry.errors import RedhostError, UsageError
from .row_writers import Cells, writer_of

if TYPE_CHECKING:
    from ..core.model.composed import Answer
    from ..core.model.questions import Questions
    from ..core.types import Progress

PART = 1024
"""Rows of a part: the most that are computed again after an interruption."""

STOPPED = "stopped"
"""The file of parts with the digest of the output that ends before a row without an answer."""

FIELDS = ("answer", "probability", "expert", "weight", "declined")
"""Fields for every row: the label or number, its probability, the heaviest column, its weight."""

SET = "answers"
"""Field added for label sets, and for tasks with any number of labels. What else a task's answers
have (`Head.fields`) has the same name in rows: the probability of each label, or spans."""

EACH = "by_expert"
"""Field added for the answers of every expert alone."""

QUESTIONS = "questions"
"""Fields added for named questions: these of each."""


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that stored parts belong to; it continues only if nothing of it has changed.

    Attributes:
        text: The field with the text.
        sets: How often the right label is to be in a row's label set; None without sets.
        generation: The generation that answers.
        each: Whether the answers of every expert alone are added.
        questions: The generations that answer the named questions, by name.
    """

    text: str
    sets: float | None
    generation: int | None
    each: bool = False
    questions: dict[str, int | None] = {}


@dataclass(frozen=True, kw_only=True)
class _Readable:
    """The rows of a file up to the first that cannot be read.

    Attributes:
        rows: Their number.
        fields: Their fields, in the order of their first appearance.
        fault: Why the next row cannot be read; None if all can.
    """

    rows: int
    fields: tuple[str, ...]
    fault: UsageError | None


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
    text: str,
    sets: float | None,
    each: bool,
    progress: Progress,
) -> Answered:
    """Answer every row of a file, and write the rows with their answers.

    Args:
        model: The model that answers.
        source: The file: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``.
        target: The output file; its suffix selects one of these formats.
        text: The field with a row's text.
        sets: How often the right label is to be in a row's label set; None without sets.
        each: Whether the answers of every expert alone are added.
        progress: Called with the number of rows answered.

    Raises:
        UsageError: If the first row has no text, the options do not suit the task, the target
            exists or has another suffix, or parts of another run lie next to it.
        RedhostError: If another row cannot be read or answered; the target has the rows before it.
    """
    write = writer_of(target)
    if not source.is_file():
        raise UsageError(
            f"{source} is read more than once",
            expected="a file",
            found="a pipe or a device",
            hint="Write what comes out of it to a file first.",
        )
    parts = target.with_name(f"{target.name}.parts")
    if target.exists() and _digest(target) != read(parts / STOPPED):
        raise UsageError(
            f"{target} is there already",
            expected="a file that is not",
            found=f"{target.stat().st_size:,} bytes",
            hint="Give --out another name, or remove it.",
        )
    added = _added(model, sets=model.levels(sets).get(None) is not None, each=each)
    readable = _read_through(source, added, text=text)
    run = Run(
        text=text,
        sets=sets,
        generation=model.default.generation if model.default else None,
        each=each,
        questions=model.generations,
    )
    _begin(parts, run)
    files, fault = _answer_parts(model, source, parts, run, readable, progress)
    done = _counted(files)
    if done.rows or fault is None:
        with reporting(target):
            whole = parts / f"whole{target.suffix}"
            write(whole, [*readable.fields, *added], partial(_joined, source, files))
            sync_file(whole)
            if fault is not None:
                write_atomic(parts / STOPPED, _digest(whole))
            replace(whole, target)
    if fault is not None:
        raise _stopped(fault, target, done.rows)
    delete_dir(parts)
    return done


def _answer_parts(
    model: Questions, source: Path, parts: Path, run: Run, readable: _Readable, progress: Progress
) -> tuple[list[Path], RedhostError | None]:
    """Answer the rows that can be read, part by part.

    Returns:
        The files of the answers, and why the row after them has none; None if all rows have one.
    """
    files, done, rows = list[Path](), 0, islice(read_cells(source), readable.rows)
    while part_rows := list(islice(rows, PART)):
        texts = [cells[run.text] for _, cells in part_rows]
        file = _part(parts, len(files), texts)
        if not file.exists():
            answers, fault = _answer(model, texts, run)
            file = _part(parts, len(files), texts[: len(answers)])
            write_atomic(file, b"".join(map(_encoded, answers)))
            if fault is not None:
                where = f"{source}, {part_rows[len(answers)][0]}"
                return [*files, file], RedhostError(
                    f"{where} cannot be answered", found=getattr(fault, "reason", repr(fault))
                )
        files.append(file)
        done += len(part_rows)
        progress(done, readable.rows)
    return files, readable.fault


def _answer(
    model: Questions, texts: Sequence[str], run: Run
) -> tuple[list[Answer], Exception | None]:
    """Return the answers up to the first text that has none, and why it has none.

    An answer does not depend on the other texts, so they can be halved until it is found.
    """
    try:
        return model.answer(texts, sets=run.sets, each=run.each), None
    except Exception as e:  # whatever it is, the rows before it are to be kept
        if len(texts) == 1:
            return [], e
    half = len(texts) // 2
    first, fault = _answer(model, texts[:half], run)
    if fault is not None:
        return first, fault
    second, fault = _answer(model, texts[half:], run)
    return [*first, *second], fault


def _part(parts: Path, number: int, texts: Sequence[str]) -> Path:
    """Return the file of a part: its answers are those of these texts."""
    digest = hashlib.sha256(msgspec.json.encode(texts)).hexdigest()
    return parts / f"{number:06}-{digest[:32]}.jsonl"


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def _stopped(fault: RedhostError, target: Path, rows: int) -> RedhostError:
    """Return the error of a row that ended a run, with where the rows before it are."""
    if not rows:
        return fault
    return RedhostError(
        fault.problem,
        expected=fault.expected,
        found=fault.found,
        hint=f"{fault.hint} {target} has the rows before it ({rows:,}). Correct the row or remove "
        "it, and run the command again: it answers only what is left.".lstrip(),
    )


def _read_through(source: Path, added: Sequence[str], *, text: str) -> _Readable:
    """Read every row once, before anything is computed."""
    fields, count, fault = dict[str, None](), 0, None
    try:
        for where, cells in read_cells(source):
            text_of(cells, text, f"{source}, {where}")
            fields.update(dict.fromkeys(cells))
            count += 1
    except UsageError as e:
        if not count:
            raise
        fault = e
    if not count:
        raise UsageError(f"{source} has no rows", expected=f"rows with {text!r}")
    if taken := [name for name in added if name in fields]:
        raise UsageError(
            f"{source} has a field {taken[0]!r} already",
            expected="other names than those of the answers",
            found=", ".join(taken),
            hint="Rename it, or answer the file that it was made from.",
        )
    return _Readable(rows=count, fields=tuple(fields), fault=fault)


def _begin(parts: Path, run: Run) -> None:
    """Create the folder of parts, or check that the existing one belongs to the same run."""
    file, hint = parts / "run.json", f"Remove {parts} to begin anew."
    begun = read_struct(file, Run, hint=hint)
    if begun is None:
        write_struct(file, run)
    elif begun != run:
        other = [n for n in Run.__struct_fields__ if getattr(begun, n) != getattr(run, n)]
        raise UsageError(
            f"{parts} holds a part of other answers",
            expected="the same options and generation",
            found=f"another {', '.join(other)}",
            hint=hint,
        )


def _added(model: Questions, *, sets: bool, each: bool) -> tuple[str, ...]:
    """Return the fields that are added to every row."""
    fields = () if model.default is None else model.default.bus.task.head.fields
    more = {
        SET: sets or "labels" in fields,
        **{name: True for name in fields if name != "labels"},
        EACH: each,
        QUESTIONS: bool(model.named),
    }
    return (*FIELDS, *(name for name, is_added in more.items() if is_added))


def _encoded(answer: Answer) -> bytes:
    """Return a line of a part; the last field is where the text was truncated."""
    from ..core.model.composed import answer_fields

    return msgspec.json.encode({**answer_fields(answer), "cut": answer.cut}) + b"\n"


def _joined(source: Path, files: Sequence[Path]) -> Iterator[Cells]:
    """Yield every row with its answer."""
    for line, (_, cells) in zip(_lines(files), read_cells(source), strict=False):
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
