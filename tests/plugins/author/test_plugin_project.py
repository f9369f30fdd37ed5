"""new-plugin: each kind is clean for linters and type checkers, and its own test passes."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redhost_author.plugin_project import KINDS

from redhost.commands.lazy import PLUGINS
from redhost.core.tasks import HEADS
from redhost.registry.package.forms import TASKS
from redhost.testing import Environment

ROOT = Path(__file__).parents[3]
NAMES = ("x", "my-part", "a-name-of-24-characters1")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def tasks() -> Iterator[None]:
    """Leave no task behind that a plugin registers."""
    before = {**TASKS}, {**HEADS}
    yield
    for table, names in zip((TASKS, HEADS), before, strict=True):
        for name in table.keys() - names:
            del table[name]


def tool(name: str, *arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_project_of_each_kind_passes_its_own_test(
    kind: str, call: Call, folder: Path, redhost_environment: Environment, request: Any
) -> None:
    assert call("new-plugin", "my-part", "--kind", kind)[0] == 0
    project = folder / "redhost-my-part"
    assert redhost_environment.install(project) == "redhost-my-part"
    path = project / "tests" / "test_my_part.py"
    spec = importlib.util.spec_from_file_location(f"own_test_of_{kind}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [test] = [f for name, f in vars(module).items() if name.startswith("test_")]
    test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})


def test_the_projects_are_clean_for_linters_and_type_checkers(call: Call, folder: Path) -> None:
    for name in NAMES:
        for kind in KINDS:
            assert call("new-plugin", name, "--kind", kind)[0] == 0
            Path(f"redhost-{name}").rename(f"{kind}-{name}")
    tool("ruff", "check", "--no-cache", "--extend-select", "B,E501,I,N,SIM,UP", ".", cwd=folder)
    tool("ruff", "format", "--no-cache", "--check", ".", cwd=folder)
    modules = [str(next(folder.glob(f"{kind}-my-part/src/*"))) for kind in KINDS]
    for kind, module in zip(KINDS, modules, strict=True):
        Path(module).rename(f"part_of_kind_{kind}")  # one check of all, each by its own name
    # Settings and cache of this tree: the types of torch were read when it was checked.
    options = ("--config-file", str(ROOT / "pyproject.toml"), "--strict")
    cache = ("--cache-dir", str(ROOT / ".mypy_cache"))
    tool("mypy", *options, *cache, *(f"part_of_kind_{kind}" for kind in KINDS), cwd=folder)


def test_the_project_names_what_it_needs(call: Call, folder: Path) -> None:
    pins = {}
    for kind in KINDS:
        assert call("new-plugin", f"of-{kind}", "--kind", kind)[0] == 0
        table = tomllib.loads(Path(f"redhost-of-{kind}/pyproject.toml").read_text("utf-8"))
        assert table["project"]["entry-points"] == {
            "redhost.plugins": {f"of-{kind}": f"redhost_of_{kind}"}
        }
        pins[kind], *others = table["project"]["dependencies"]
        assert others == (["redhost-author==0.1.0"] if kind == "form" else [])
        text = Path(f"redhost-of-{kind}/src/redhost_of_{kind}/__init__.py").read_text("utf-8")
        internal = "redhost.core" in text or "redhost.registry" in text
        assert internal == ("==" in pins[kind])
    assert {kind for kind, pin in pins.items() if "==" in pin} == {"form", "task"}


@pytest.mark.parametrize("name", ["Upper", "under_score", "-x", "x-", "a--b", "x" * 25, "1st", ""])
def test_what_is_no_name_is_refused(name: str, call: Call, folder: Path) -> None:
    code, out, err = call("new-plugin", "--kind", "task", "--", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert {*folder.iterdir()} == set()


def test_names_that_are_taken_are_refused(call: Call, folder: Path) -> None:
    for name in (*PLUGINS, "mechanisms"):
        assert call("new-plugin", name, "--kind", "task")[0] == 2
    assert call("new-plugin", "mine", "--kind", "router")[0] == 0
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert call("new-plugin", "mine", "--kind", "task")[0] == 2
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
