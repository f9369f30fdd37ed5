"""A tiny model, and one thread, as in the core's tests: bits may depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ....core.conftest import bare, model_folder, one_thread

__all__ = ["bare", "folder", "model_folder", "one_thread"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """Stay in the folder of the session, as does the process by which backbones are tried."""
    return tmp_path
