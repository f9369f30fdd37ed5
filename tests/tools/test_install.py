"""What make installs: for whom, what it says of it, and that the page is that of the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import install
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / install.RESULTS


def recipe(target: str) -> str:
    """Return what make would do in a clone where nothing was made yet."""
    command = ["make", "-n", "BIN=nowhere", "-W", "pyproject.toml", target]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_demo_needs_no_developers_tools() -> None:
    assert "install.py demo" in recipe("demo") and "install.py dev" not in recipe("demo")
    assert "install.py demo" in recipe("lint") and "install.py dev" in recipe("lint")
    words = {word for step in install.STEPS["demo"] for word in step.wanted}
    assert not [word for word in words if "dev" in word]


def test_the_page_is_that_of_the_figures_and_every_step_has_its_own() -> None:
    metrics = json.loads((RESULTS / "metrics.json").read_text("utf-8"))
    assert (RESULTS / "README.md").read_text("utf-8") == install.page(metrics)
    measured = {kind: [s["title"] for s in steps] for kind, steps in metrics["steps"].items()}
    assert measured == {k: [s.title for s in steps] for k, steps in install.STEPS.items()}
    assert all(s["mib"] >= 0 for steps in metrics["steps"].values() for s in steps)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A project without dependencies, which pip installs without a network."""
    project = tmp_path / "project"
    (project / "src/a_part").mkdir(parents=True)
    (project / "src/a_part/data.bin").write_bytes(bytes(3 * install.MIB))
    (project / "src/a_part/__init__.py").write_text("")
    code = "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n"
    (project / "pyproject.toml").write_text(f"{code}[project]\nname = 'a-part'\nversion = '1'\n")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(project)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    return wheel


def test_a_step_says_what_it_is_how_large_and_how_long(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    step = install.Step("a part", ("--no-index", str(package)))
    monkeypatch.setattr(install, "STEPS", {"demo": (step,)})
    known = {"a part": {"mib": 3, "seconds": 7}}
    [done] = install.fill(tmp_path / "venv", "demo", known=known)
    assert done["title"] == "a part" and done["mib"] == 3
    out = capsys.readouterr().out
    assert out.startswith("[1/1] a part: 3 MiB, 7 s when measured\n")
    [again] = install.fill(tmp_path / "venv", "demo", known={})
    assert again["mib"] == 0 and capsys.readouterr().out.startswith("[1/1] a part\n")


def test_a_step_that_fails_is_named_and_ends_the_work(
    make_venv: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_venv(tmp_path / "venv")
    wrong, never = (install.Step(t, ("--no-index", "no-such-part")) for t in ("wrong", "never"))
    monkeypatch.setattr(install, "STEPS", {"demo": (wrong, never)})
    with pytest.raises(SystemExit, match=r"\[1/2\] wrong: pip failed"):
        install.fill(tmp_path / "venv", "demo", known={})
