"""The fixture of an environment; pytest loads it wherever redhost is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .testing import Environment

__all__ = ["redhost_environment"]


@pytest.fixture
def redhost_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """An empty environment next to the real one; modules from it are unloaded afterwards."""
    folder = tmp_path / "environment"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = dict(sys.modules)
    yield Environment(folder)
    for name, module in list(sys.modules.items()):
        if before.get(name) is not module and str(folder) in _file_of(module):
            del sys.modules[name]


def _file_of(module: object) -> str:
    """Return a module's file; getattr would import one that waits for its first use."""
    if not issubclass(type(module), ModuleType):  # isinstance believes what others pretend to be
        return ""
    return str(object.__getattribute__(module, "__dict__").get("__file__"))
