"""The import contracts of pyproject.toml hold, see every module, and notice a break."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
LINTER = Path(sys.executable).with_name("lint-imports")
SOURCES = (
    ROOT / "src",
    *(
        ROOT / "plugins" / n / "src"
        for n in (
            "red-lab",
            "redhost-author",
            "redhost-doctor",
            "redhost-fleet",
            "redhost-author",
            "redhost-gateway",
            "redhost-generate",
            "redhost-index",
            "redhost-mechanisms",
            "redhost-merge",
            "redhost-mlflow",
            "redhost-onnx",
            "redhost-peft",
            "redhost-port",
            "redhost-report",
            "redhost-revoke",
            "redhost-robust",
            "redhost-serve",
            "redhost-spans",
            "redhost-sync",
            "redhost-words",
        )
    ),
)

BREAKS = {
    "the registry imports core": ("redhost/registry/wheel/policy.py", "from ...core import types"),
    "the bus imports what composes": (
        "redhost/core/bus/strategies.py",
        "from ..composition import gates",
    ),
    "learning imports the host": ("redhost/core/routers/cards.py", "from ..host import Host"),
    "the registry imports torch": ("redhost/registry/wheel/policy.py", "import torch"),
    "core imports a command": (
        "redhost/core/composition/recompose.py",
        "from ...commands import common",
    ),
    "core imports the tests' kit": ("redhost/core/live.py", "from .. import testing"),
    "a command imports the command line": ("redhost/commands/welcome.py", "from ..cli import main"),
    "a plugin imports core": ("redhost_serve/run.py", "from redhost.core.host import Host"),
    "a room below imports one above": (
        "redhost/registry/package/forms.py",
        "from ..wheel import policy",
    ),
    "core imports a plugin": ("redhost/core/live.py", "import redhost_merge.distill"),
    "a plugin imports the registry": ("redhost_serve/run.py", "import redhost.registry.home.store"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, links followed, that a test may break."""
    site = tmp_path_factory.mktemp("site")
    for source in SOURCES:
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, site, ignore=unwanted, dirs_exist_ok=True)
    return site


@pytest.fixture
def broken(copy: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    name, line = BREAKS[request.param]
    file = copy / name
    whole = file.read_text("utf-8")
    file.write_text(f"{whole}\n{line}\n", "utf-8")
    yield copy
    file.write_text(whole, "utf-8")


def lint(site: Path | None = None) -> subprocess.CompletedProcess[str]:
    first = {} if site is None else {"PYTHONPATH": str(site)}
    return subprocess.run(
        [str(LINTER), "--no-cache", "--no-logo", "--config", str(ROOT / "pyproject.toml")],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
        env={**os.environ, **first},
    )


def test_the_contracts_hold_here_and_in_the_copy(copy) -> None:
    for output in (lint(), lint(copy)):
        assert output.returncode == 0, output.stdout
        assert "6 kept, 0 broken" in output.stdout


@pytest.mark.parametrize("broken", BREAKS, indirect=True)
def test_a_break_is_reported(broken) -> None:
    output = lint(broken)
    assert output.returncode == 1 and "BROKEN" in output.stdout


def test_the_links_of_the_face_are_followed_to_every_module() -> None:
    folders = {"redhost.core": ROOT / "core", "redhost.registry": ROOT / "registry"}
    seen = grimp.build_graph("redhost", cache_dir=None).modules
    for package, folder in folders.items():
        files = {p.relative_to(folder).with_suffix("").parts for p in folder.rglob("*.py")}
        wanted = {".".join((package, *parts)).removesuffix(".__init__") for parts in files}
        assert len(wanted) > 30 and wanted <= seen
