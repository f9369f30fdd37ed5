"""Fixtures for plugin authors; pytest loads them wherever redhost-author is installed.

torch is not imported before a fixture that needs it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from redhost.testing import Environment
from redhost_author.testing import backbone_project, expert_project

__all__ = ["redhost_backbone", "redhost_fake_expert"]


@pytest.fixture(scope="session")
def redhost_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project of a tiny random backbone, ``tiny-random``, without labels."""
    return backbone_project(tmp_path_factory.mktemp("redhost") / "red-backbone-tiny-random")


@pytest.fixture(scope="session")
def _redhost_expert(
    redhost_backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, tuple[str, str], int], Path]:
    """Return a function that maps id, labels and seed to an expert's project, trained once."""

    @cache
    def project(expert_id: str, labels: tuple[str, str], seed: int) -> Path:
        folder = tmp_path_factory.mktemp(expert_id) / f"red-expert-{expert_id}"
        return expert_project(folder, expert_id, redhost_backbone, labels=labels, seed=seed)

    return project


@pytest.fixture
def redhost_fake_expert(
    redhost_environment: Environment,
    redhost_backbone: Path,
    _redhost_expert: Callable[[str, tuple[str, str], int], Path],
) -> Callable[..., str]:
    """Return a function that installs a real expert on `redhost_backbone` under a given id.

    It takes the id, and optionally ``labels=`` and ``seed=``; the backbone is installed with the
    first expert. It returns the distribution's name, for ``uninstall``.
    """

    def install(expert_id: str, *, labels: tuple[str, str] = ("a", "b"), seed: int = 0) -> str:
        if not redhost_environment.package("red-backbone-tiny-random").exists():
            redhost_environment.install(redhost_backbone)
        return redhost_environment.install(_redhost_expert(expert_id, labels, seed))

    return install
