"""The commands, called in this process as a shell calls them, on the packages that ship."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import redhost
from redhost.cli import main

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what its user trusts, nor a project's settings."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return the function that runs a command: its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as e:
            main(arguments)
        out, err = capsys.readouterr()
        return int(e.value.code or 0), out, err

    return run


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the shipped experts composed; copy it before changing it."""
    home = tmp_path_factory.mktemp("shipped") / "home"
    redhost.Host.open(home, plugins=redhost.plugins.Plugins(())).recompose()
    return home


@pytest.fixture
def home(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the composed home, which commands use by default."""
    home = tmp_path / "home"
    shutil.copytree(shipped, home)
    monkeypatch.setenv("REDHOST_HOME", str(home))
    return home
