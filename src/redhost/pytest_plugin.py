"""Fixtures for authors and plugin authors; pytest loads them wherever redhost is installed.

Nothing of torch is imported before a fixture that needs it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .testing import Environment, backbone_project, expert_project

__all__ = ["redhost_backbone", "redhost_environment", "redhost_fake_expert"]


@pytest.fixture
def redhost_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """An empty environment beside the real one; what it imported is forgotten afterwards."""
    folder = tmp_path / "environment"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Environment(folder)
    for name, module in list(sys.modules.items()):
        if str(folder) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture(scope="session")
def redhost_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project of a tiny random backbone, ``tiny-random``, without labels."""
    return backbone_project(tmp_path_factory.mktemp("redhost") / "red-backbone-tiny-random")


@pytest.fixture
def redhost_fake_expert(
    redhost_environment: Environment, redhost_backbone: Path, tmp_path: Path
) -> Callable[..., str]:
    """Return a function that installs a real expert on `redhost_backbone` by an id of your choice.

    It takes the id, and ``labels=`` and ``seed=`` where the defaults will not do; the backbone is
    installed with the first. It returns the distribution's name, for ``uninstall``.
    """

    def install(expert_id: str, *, labels: tuple[str, str] = ("a", "b"), seed: int = 0) -> str:
        if not redhost_environment.package("red-backbone-tiny-random").exists():
            redhost_environment.install(redhost_backbone)
        project = tmp_path / f"red-expert-{expert_id}"
        expert_project(project, expert_id, redhost_backbone, labels=labels, seed=seed)
        return redhost_environment.install(project)

    return install
