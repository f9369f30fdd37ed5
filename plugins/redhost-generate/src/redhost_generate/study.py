"""`redhost lab decoding`: texts of different adapters at once, beside PEFT, llama.cpp and vLLM.

Every system gives each prompt the same number of greedy tokens, with the adapter that is named for
it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
from red_lab.study import Cell, Study

from redhost_generate.systems import (
    ADAPTERS,
    NAMED,
    RANK,
    TARGETS,
    TOGETHER,
    TOKENS,
    Answer,
    System,
    systems_of,
)

__all__ = ["STUDY", "decoding"]

REST = 1.0
"""Seconds between two systems: threads wait for more work before they sleep."""

SUBJECTS = ("a lighthouse", "the first railway", "bread", "a violin")
OPENINGS = (
    "Explain {} to a child.",
    "Write the beginning of a story about {} and a storm in the middle of the night:",
    "List what one has to know of {}, one item a line.\n1.",
    "Q: Who needs {}, and why?\nA:",
    "{}",
    "In three sentences, and without any adjective, describe {} as a traveller from abroad would",
    "A letter to the editor of a small newspaper about {}.\n\nDear",
    "def describe():\n    return '''{} is",
)


def prompts(count: int) -> list[str]:
    """Return so many different prompts, of different lengths."""
    return [
        OPENINGS[n % len(OPENINGS)].format(SUBJECTS[n // len(OPENINGS) % len(SUBJECTS)])
        for n in range(count)
    ]


def measure(cell: Cell) -> dict[str, Any]:
    """Return tokens a second and the first tokens' seconds of every system, and texts in common."""
    from red_lab.models import smollm2_file

    return _measured(Path(smollm2_file()), int(cell.part), turn=cell.seed)


def other(model: Path | None) -> bool:
    """Print the figures of one round with another model; return whether there is one."""
    if model is None:
        return False
    for part in STUDY.parts:
        for name, row in _measured(model, int(part)).items():
            rate, first = f"{row['rate']:.1f} tokens a second", f"first {row['first']:.2f} s"
            click.echo(f"{part} texts  {name}: {rate}, {first}, {row['same']:.0%} as PEFT alone")
    return True


def _measured(source: Path, count: int, *, turn: int = 0) -> dict[str, Any]:
    """Measure every system with so many texts; by turn, another one is the first."""
    texts = prompts(count)
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder, ExitStack() as stack:
        systems, adapters = systems_of(source, Path(folder), stack)
        names, first = [*islice(cycle(adapters), count)], turn % len(systems)
        order = [*systems][first:] + [*systems][:first]
        answers = {name: _rested(systems[name], texts, names) for name in order}
    return {
        name: {
            "rate": TOKENS * count / last,
            "first": first,
            "same": sum(map(str.__eq__, made, answers[NAMED][0])) / count,
        }
        for name, (made, first, last) in answers.items()
    }


def _rested(system: System, texts: Sequence[str], names: Sequence[str]) -> Answer:
    """Return a system's answer once it has read its weights, after another one's threads sleep.

    The order of systems is a circle, so the first answer after llama.cpp's would be redhost's in
    every round.
    """
    time.sleep(REST)
    system(texts[:1], names[:1])
    return system(texts, names)


def summarise(part: str, cells: Sequence[Any]) -> dict[str, Any]:
    """Return the medians of the rounds, and those of the ratios within a round."""
    del part

    def median(name: str, key: str) -> float:
        return float(statistics.median(cell[name][key] for cell in cells))

    return {
        name: {
            "rate": median(name, "rate"),
            "first": median(name, "first"),
            "same": min(cell[name]["same"] for cell in cells),
            "ratio": statistics.median(
                cell[TOGETHER]["rate"] / cell[name]["rate"] for cell in cells
            ),
        }
        for name in cells[0]
    }


def names(metrics: Mapping[str, Any]) -> Mapping[str, object]:
    """Return what the page uses besides its metrics."""
    del metrics
    return {"adapters": ADAPTERS, "rank": RANK, "count": TOKENS, "targets": TARGETS}


STUDY = Study(
    name="decoding",
    help="Time texts of different adapters at once, beside PEFT, llama.cpp and vLLM.",
    schema="redhost-decoding/1",
    parts=("1", "8", "32"),
    measure=measure,
    summarise=summarise,
    package="redhost_generate",
    names=names,
    seeds=3,
    options=(
        click.Option(
            ["--model"],
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            help="Print the figures of this GGUF file instead.",
        ),
    ),
    instead=other,
)

decoding: click.Command = STUDY.command
