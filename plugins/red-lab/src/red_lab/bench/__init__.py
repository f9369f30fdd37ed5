"""Define a section of the bench, and run any of them.

A section named NAME is the module ``red_lab.bench.NAME`` with an object ``SECTION``; its results
are ``NAME.json`` and its part of the page is the template ``bench/NAME.md.j2``. Sections are
imported only when they run or are rendered.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from red_lab.metrics import Metrics, render, write_json

__all__ = ["SECTIONS", "Section", "SectionSettings", "load", "page", "run", "write_page"]

SECTIONS = ("profile", "answers", "heads", "peers", "scale", "growth")
"""In the order of the page."""

SCHEMA = "red-lab.bench/2"


@dataclass(frozen=True, kw_only=True)
class SectionSettings:
    """How to measure.

    Attributes:
        runs: Measured rounds; the median over them is reported.
        work: Folder for checkpoints of long work.
        texts: Texts of a large call.
        backbones: Backbones to measure, where a section has a choice; empty for all.
    """

    runs: int
    work: Path
    texts: int = 10_000
    backbones: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page.

    Attributes:
        name: The name of its module, file and template.
        measure: Returns the contents of its file.
        names: What its template uses besides these.
        draw: Writes its figure to a folder.
    """

    name: str
    measure: Callable[[SectionSettings], Mapping[str, Any]]
    names: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[Metrics, Path], None] | None = None


def load(name: str) -> Section:
    """Import a section."""
    section: Section = importlib.import_module(f"red_lab.bench.{name}").SECTION
    return section


def page(name: str, metrics: Metrics) -> str:
    """Return a section's part of the page."""
    return render(f"bench/{name}", metrics, **load(name).names).rstrip("\n")


def run(name: str, *, out: Path, settings: SectionSettings) -> Path:
    """Measure one section, write its file and the page; return the file."""
    settings.work.mkdir(parents=True, exist_ok=True)
    section = load(name)
    measured = section.measure(settings)
    metrics = {"schema": SCHEMA, "section": name, "machine": _machine(), **measured}
    path = write_json(metrics, out / f"{name}.json")
    if section.draw is not None:
        section.draw(metrics, out)
    write_page(out)
    return path


def write_page(out: Path) -> None:
    """Write the page of all sections that have been measured."""
    files = {name: out / f"{name}.json" for name in SECTIONS}
    parts = {
        name: page(name, json.loads(file.read_text("utf-8"))) if file.exists() else None
        for name, file in files.items()
    }
    (out / "README.md").write_text(render("bench", parts), "utf-8")


def _machine() -> dict[str, Any]:
    """Return a description of the machine, with versions of libraries."""
    names = ("torch", "transformers", "safetensors")
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": {name: metadata.version(name) for name in names},
    }
