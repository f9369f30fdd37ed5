"""A fresh environment, made once: torch, then nothing but what the wheels of a test bring."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import release

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"
"""The version that make installs; the wheel's own bound would bring the newest."""
PINNED = ("-c", str(ROOT / "constraints.txt"))


@dataclass(frozen=True)
class Fresh:
    """A virtual environment with no view of any other, and the index it installs ours from."""

    folder: Path
    index: Path

    @property
    def env(self) -> dict[str, str]:
        """The variables of its programs."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "REDHOST"))}
        return {**env, "OMP_NUM_THREADS": "1", "REDHOST_CONFIG": str(self.folder / "config")}

    def type(self, command: str, *, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Type a command into a shell in which the environment is active."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", command],
            cwd=cwd,
            check=False,
            capture_output=True,
            text=True,
            env={**self.env, "PATH": path, **env},
        )

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment in a folder of its own; return what it prints."""
        done = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
            env=self.env,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)}\n{done.stderr}"
        return done.stdout

    def pip(self, *arguments: str) -> str:
        return self.run("python", "-m", "pip", "--disable-pip-version-check", *arguments)

    def install(self, *names: str) -> None:
        """Install packages of ours from the index, then what they ask for from where pip looks."""
        ours = ["--no-deps", "--index-url", self.index.as_uri()]
        self.run("python", "-m", "pip", "--isolated", "install", "-q", *ours, *names)
        self.pip("install", "-q", *PINNED, *names)
        self.pip("check")

    def installed(self) -> set[str]:
        return {row["name"] for row in json.loads(self.pip("list", "--format", "json"))}

    def redhost(self, *arguments: str) -> Any:
        return json.loads(self.run("redhost", *arguments, "--json"))


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """The environment, with the host in it."""
    dist = tmp_path_factory.mktemp("dist")
    release.build(ROOT, dist)
    release.write_index(dist)
    release.describe(ROOT, dist)
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    made = Fresh(folder, dist / "simple")
    made.pip("install", "-q", *PINNED, TORCH)
    made.install("redhost")
    return made


@pytest.fixture
def install(fresh: Fresh) -> Iterator[Any]:
    """Install packages for a test, and see that uninstalling leaves nothing of them behind."""
    site = next((fresh.folder / "lib").glob("python*")) / "site-packages"
    ours: list[str] = []

    def call(*names: str) -> Fresh:
        ours.extend(names)
        fresh.install(*names)
        return fresh

    yield call
    fresh.pip("uninstall", "-q", "-y", *ours)
    assert not fresh.installed() & set(ours)
    assert not [p for name in ours for p in site.glob(f"{name.replace('-', '_')}*")]
