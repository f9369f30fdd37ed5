"""What a section of the bench is: a module that measures, and tells what it found.

A section named NAME is the module ``red_lab.bench.NAME`` with three names: ``TITLE``,
``measure(settings)``, which returns what goes into ``NAME.json``, and ``page(found)``, which
returns its part of the page. One that has figures also has ``draw(found, folder)``, called once it
has measured. Sections are imported when they run, never before.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, cast

from red_lab.metrics import write_json

__all__ = ["SECTIONS", "Section", "SectionSettings", "load", "machine", "run", "write_page"]

SECTIONS: tuple[str, ...] = (
    "startup",
    "profile",
    "answers",
    "heads",
    "files",
    "bus",
    "decode",
    "peers",
    "scale",
    "growth",
    "engine",
)
"""In the order of the page."""

SCHEMA = "red-lab.bench/2"


@dataclass(frozen=True, kw_only=True)
class SectionSettings:
    """How to measure.

    Attributes:
        runs: Rounds that count; the median over them is reported.
        work: Where long work keeps its checkpoints.
        texts: How many make a large call.
        backbones: Those to measure, where a section has a choice; none stands for all.
        rows: How many the largest file has.
    """

    runs: int
    work: Path
    texts: int = 10_000
    backbones: tuple[str, ...] = ()
    rows: int = 1_000_000


class Section(Protocol):
    """A module of this package."""

    TITLE: str

    def measure(self, settings: SectionSettings) -> dict[str, Any]:
        """Return what goes into the section's file."""
        ...

    def page(self, found: Mapping[str, Any]) -> str:
        """Return the section's part of the page, from what was measured."""
        ...


def load(name: str) -> Section:
    """Import a section."""
    return cast("Section", importlib.import_module(f"red_lab.bench.{name}"))


def run(name: str, *, out: Path, settings: SectionSettings) -> Path:
    """Measure one section, write its file and the page; return the file."""
    settings.work.mkdir(parents=True, exist_ok=True)
    found = load(name).measure(settings)
    metrics = {"schema": SCHEMA, "section": name, "machine": machine(), **found}
    path = write_json(metrics, out / f"{name}.json")
    if (draw := getattr(load(name), "draw", None)) is not None:  # a section may have a figure
        draw(metrics, out)
    write_page(out)
    return path


def write_page(out: Path) -> None:
    """Write the page of all sections that have been measured."""
    parts = ["# Bench\n\nWritten by `redhost lab bench`; medians, side by side in one run.\n"]
    for name in SECTIONS:
        file = out / f"{name}.json"
        if file.exists():
            section = load(name)
            body = section.page(json.loads(file.read_text("utf-8")))
            parts.append(f"## {section.TITLE}\n\n{body}\n")
    (out / "README.md").write_text("\n".join(parts), "utf-8")


def machine() -> dict[str, Any]:
    """Return what was measured on, with versions."""
    names = ("torch", "transformers", "safetensors")
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": {name: metadata.version(name) for name in names},
    }
