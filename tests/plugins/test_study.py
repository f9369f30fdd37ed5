"""A study of another package: one module and one template, run through its command."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from click.testing import CliRunner

MODULE = """
from red_lab.study import Study

measured = []

def measure(cell):
    measured.append(cell.seed)
    return {"height": 10 + cell.seed, "where": cell.part}

def summarise(part, cells):
    return {"highest": max(c["height"] for c in cells), "seeds": len(cells)}

STUDY = Study(
    name="tides",
    help="Measure the tides.",
    schema="sea.tides/1",
    parts=("north", "south"),
    measure=measure,
    summarise=summarise,
    package="sea_tides",
)
"""
TEMPLATE = "# Tides\n\n{% for name, t in tasks.items() %}{{ name }}: {{ t.highest }}\n{% endfor %}"


@pytest.fixture
def tides(tmp_path, monkeypatch):
    package = tmp_path / "site" / "sea_tides"
    (package / "templates").mkdir(parents=True)
    (package / "__init__.py").write_text(MODULE)
    (package / "templates" / "tides.md.j2").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(str(package.parent))
    yield importlib.import_module("sea_tides")
    sys.modules.pop("sea_tides")


def test_a_module_and_a_template_are_a_study_that_resumes(tmp_path, tides) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    given = ["--seeds", "2", "--out", str(out), "--work", str(work)]
    for parts in (["--part", "south"], []):
        done = CliRunner().invoke(tides.STUDY.command, [*given, *parts], catch_exceptions=False)
        assert done.exit_code == 0 and done.output == f"{out / 'metrics.json'}\n"
    assert tides.measured == [0, 1, 0, 1]
    stored = sorted(p.name for p in (work / "tides").iterdir())
    assert stored == [f"{part}-{seed}.json" for part in ("north", "south") for seed in (0, 1)]
    metrics = json.loads((out / "metrics.json").read_text("utf-8"))
    expected = {"highest": 11, "seeds": 2}
    assert metrics == {"schema": "sea.tides/1", "tasks": {"north": expected, "south": expected}}
    assert (out / "README.md").read_text("utf-8") == "# Tides\n\nnorth: 11\nsouth: 11\n"


def test_a_part_that_is_no_part_is_refused(tides) -> None:
    done = CliRunner().invoke(tides.STUDY.command, ["--part", "east"])
    assert done.exit_code == 2 and not tides.measured
