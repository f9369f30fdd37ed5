"""The commands, called in this process as a shell calls them, in a folder of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from redhost.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a trust, of a test's own."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return the function that runs a command: its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as e:
            main(arguments)
        out, err = capsys.readouterr()
        return int(e.value.code or 0), out, err

    return run
