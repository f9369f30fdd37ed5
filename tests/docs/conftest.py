"""A stage on which a page's commands are typed, as by somebody who has just installed redhost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pages.commands import Command
from pages.page import ROOT, Block

from ..conftest import SESSION

SHIPPED = ("red-backbone-tiny", *(f"red-expert-range{n}" for n in range(1, 6)))
"""Data packages: on a stage they are ordinary wheels, so that pip can take them away."""


@dataclass(frozen=True)
class Stage:
    """An environment and a folder of its own; the state lies in the folder, as by default.

    Attributes:
        folder: Where commands are typed.
        tools: Where python, pip and redhost lie.
        wheels: The folder of wheels that stands in for an index.
    """

    folder: Path
    tools: Path
    wheels: Path

    @property
    def env(self) -> dict[str, str]:
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("REDHOST_", "PIP_"))}
        return variables | {
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
            "REDHOST_CONFIG": str(self.tools.parent / "config"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": "",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as: build in isolation? no
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Type a command into a shell."""
        return self._run(["sh", "-c", command])

    def python(self, source: str) -> subprocess.CompletedProcess[str]:
        """Run a program."""
        return self._run([str(self.tools / "python"), "-W", "error", "-c", source])

    def session(self, commands: Sequence[str]) -> list[tuple[int, str, str]]:
        """Type commands of redhost one after the other, in one process: code, stdout and stderr."""
        words = json.dumps([shlex.split(command)[1:] for command in commands])
        done = self._run([str(self.tools / "python"), "-c", SESSION, words])
        assert done.returncode == 0, done.stderr
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    def must(self, command: str) -> None:
        """Type what a page takes for granted."""
        done = self.type(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.folder, env=self.env, check=False, capture_output=True, text=True
        )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Path:
    """A virtual environment that has all of this one, its data packages as pip installs wheels."""
    folder = tmp_path_factory.mktemp("stage") / "site"
    venv.create(folder, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    data = tuple(name.replace("-", "_") for name in SHIPPED)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        own = entry.name.removeprefix("_editable_impl_").startswith(data)
        if own or entry.name == "__pycache__":
            continue
        if entry.suffix == ".dist-info":  # a copy, so that pip never writes into the real one
            shutil.copytree(entry, site / entry.name)
        else:
            (site / entry.name).symlink_to(entry)
    stage = Stage(folder, set_tools(folder), wheels)
    stage.must(f"pip install -q --no-deps {' '.join(SHIPPED)}")
    return folder


def set_tools(folder: Path) -> Path:
    """Write the commands of an environment, which name it; return where they lie."""
    for name, module in {"redhost": "redhost", "pip": "pip"}.items():
        tool = folder / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {module} "$@"\n')
        tool.chmod(0o755)
    return folder / "bin"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of the shipped data packages, what `make index` fills."""
    from redhost_author.wheels import build_wheel

    out = tmp_path_factory.mktemp("wheels")
    for name in SHIPPED:
        build_wheel(ROOT / "plugins" / name, out)
    return out


SMALLTALK = {"greeting": ("hello", "good morning"), "farewell": ("goodbye", "good night")}


@pytest.fixture
def make_stage(
    tmp_path: Path, site: Path, wheels: Path, speaker_model: Path
) -> Callable[[str], Stage]:
    """Return the function that makes the stage for a page, with what the page says you have."""

    def make(page: str) -> Stage:
        shutil.copytree(site, tmp_path / "site", symlinks=True)
        folder = tmp_path / "work"
        folder.mkdir()
        stage = Stage(folder, set_tools(tmp_path / "site"), wheels)
        rows = [
            {"text": f"{words} {n}", "label": label}
            for n in range(100)
            for label, several in SMALLTALK.items()
            for words in several
        ]
        for name in ("smalltalk.jsonl", "sun.jsonl"):
            (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        lines = [f"{row['text']},{row['label']}\n" for row in rows]
        (folder / "moon.csv").write_text("".join(["question,label\n", *lines]))
        shutil.copytree(speaker_model, folder / "my-model")
        shutil.copytree(wheels, folder / "dist")
        for command in BEFORE.get(page, ()):
            stage.must(command)
        return stage

    return make


PLAN = """\
{"dir": "red-expert-sun", "data": "sun.jsonl"}
{"dir": "red-expert-moon", "data": "moon.csv", "text_field": "question", "seed": 3}
"""

BEFORE: Mapping[str, tuple[str, ...]] = {
    "docs/engines.md": (
        "redhost new-expert sun --backbone tiny",
        "redhost new-expert moon --backbone tiny",
        f"printf '%s' '{PLAN}' > plan.jsonl",
        "redhost recompose",
    ),
    "docs/packages.md": (
        "cp dist/red_expert_range3-*.whl .",
        "pip uninstall -y red-expert-range3",
        "redhost recompose",
        "redhost new-expert mine --backbone tiny",
        "redhost train-expert red-expert-mine --data smalltalk.jsonl --epochs 3",
    ),
}
"""What a page's reader has done already, by page."""


@pytest.fixture(scope="session")
def allowed() -> dict[str, Any]:
    """Return what pages may hold without a test, and why: `allowed.toml`."""
    return tomllib.loads((Path(__file__).parent / "allowed.toml").read_text("utf-8"))


def is_listed(thing: Command | Block, allowed: dict[str, Any]) -> bool:
    """Tell whether a command or a block is one of those that no test here runs."""
    return any(
        entry["page"] == thing.page and thing.text.startswith(entry["starts"])
        for entry in allowed["not_run"]
    )
