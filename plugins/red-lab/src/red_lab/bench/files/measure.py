"""Answer files of growing size in every format, and time the bare encoder for comparison."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import redhost
from red_lab.bench.answers.subject import Subject
from red_lab.bench.answers.systems import FLOOR, SYSTEMS
from red_lab.bench.files.drive import Bare, Driven, drive
from red_lab.bench.files.rows import lost_and_doubled, texts_of, write_rows
from red_lab.bench.peers.worker import ask
from red_lab.bench.processes import REDHOST
from red_lab.bench.rounds import seconds_of, spread, times
from red_lab.bench.section import SectionSettings
from red_lab.hotswap_measure import shipped
from red_lab.progress import Bar
from redhost.commands.files import PART
from redhost.core.training.rows import read_cells

__all__ = ["measure"]

FORMATS = (("minilm", ".csv"), ("tiny", ".jsonl"), ("tiny", ".parquet"))
"""Backbone and format: every format once, and one of them with a slow encoder."""

SHARES = (100, 10, 1)
"""Divisors of the number of rows: a hundredth, a tenth, all."""

KILLS, PAIRS, BATCH = 5, 40, 32

SENTENCES = "sentence-transformers"

SORTED = "transformers, sorted and padded"


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Measure every format at every size; partial results are in the work folder until the end.

    Raises:
        MissingError: If the package of the texts, or that of the encoder, is not installed.
    """
    folder, threads = (settings.work / "files").absolute(), torch.get_num_threads()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    sizes = [settings.rows // share for share in SHARES]
    todo = list(itertools.product(FORMATS, sizes))
    bar, found = Bar("files", total=len(todo)), list[dict[str, Any]]()
    try:
        for n, ((backbone, suffix), rows) in enumerate(todo):
            bar.update(n, f"{backbone} {rows:,} rows {suffix}")
            subject = _subject(folder, backbone)
            killed = KILLS if rows == settings.rows else 0
            found.append(_answered(folder, backbone, subject, suffix, rows, kills=killed))
        bar.update(len(todo))
    finally:
        torch.set_num_threads(threads)
    shutil.rmtree(folder / "runs")
    return {"rows": settings.rows, "threads": 1, "part": PART, "runs": found}


def _subject(folder: Path, backbone: str) -> Subject:
    """Return the home that answers and the folder of its encoder; make missing ones."""
    subject = Subject.under(folder, backbone)
    if backbone == "tiny":
        subject = replace(subject, model=shipped()[0])
    if (subject.home / "current").exists():
        return subject
    if backbone == "minilm":
        ask("subject:compose_minilm", package="red_lab.bench.answers", folder=str(folder))
    else:
        with redhost.Host.open(subject.home) as host:
            host.recompose()
    return subject


def _answered(
    folder: Path, backbone: str, subject: Subject, suffix: str, rows: int, *, kills: int
) -> dict[str, Any]:
    """Answer one file; return the cost, and whether all rows were answered."""
    work = folder / "runs" / f"{backbone}{suffix}-{rows}"
    work.mkdir(parents=True, exist_ok=True)
    source, target = work / f"rows{suffix}", work / f"answered{suffix}"
    texts = list(texts_of(backbone, rows))
    if not source.exists():
        made = work / f"made{suffix}"
        write_rows(made, texts)
        made.replace(source)
    parts = -(-rows // PART)
    driven = drive(
        [
            *REDHOST,
            "predict",
            "--home",
            f"{subject.home}",
            "--in",
            f"{source}",
            "--out",
            f"{target}",
        ],
        target,
        bare=_bare(subject, backbone, texts),
        stops=range(2, parts, max(3, parts // PAIRS)),
        kills=[parts * n // (KILLS - 1) for n in range(kills)],
    )
    return {"backbone": backbone, "format": suffix, **_checked(driven, target, texts)}


def _checked(driven: Driven, target: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Return a run's measurements: seconds, those of the bare encoders, and lost rows."""
    lost, doubled, other = lost_and_doubled((cells for _, cells in read_cells(target)), texts)
    ours, beside = driven.parts.pop("redhost", []), driven.parts
    return {
        "rows": len(texts),
        "seconds": driven.seconds,
        "peak": driven.peak,
        "kills": len(driven.kills),
        "lost": lost,
        "doubled": doubled,
        "other": other,
        "part_seconds": spread(ours) if ours else None,
        "bare": {
            name: {"part_seconds": spread(took), "times": times(ours, took), "parts": len(took)}
            for name, took in beside.items()
        },
    }


def _bare(subject: Subject, backbone: str, texts: Sequence[str]) -> Bare:
    """Return timed functions that encode the texts of a part without answering them."""
    encode = SYSTEMS[FLOOR](subject)
    systems: dict[str, Callable[[Sequence[str]], object]] = {SORTED: partial(_sorted, encode)}
    if backbone == "minilm" and find_spec("sentence_transformers"):
        systems[SENTENCES] = SYSTEMS[SENTENCES](subject)
    for system in systems.values():
        system(texts[:BATCH])  # warms up
    return {name: partial(_timed, system, texts) for name, system in systems.items()}


def _sorted(encode: Callable[[Sequence[str]], object], texts: Sequence[str]) -> None:
    """Encode texts shortest first, padded batch by batch."""
    ordered = sorted(texts, key=len)
    for start in range(0, len(ordered), BATCH):
        encode(ordered[start : start + BATCH])


def _timed(system: Callable[[Sequence[str]], object], texts: Sequence[str], part: int) -> float:
    return seconds_of(partial(system, texts[part * PART : (part + 1) * PART]))
