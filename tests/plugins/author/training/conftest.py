"""The core's small world: a random backbone, and one thread, as bits may depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ....core.conftest import (
    backbone,
    backbone_folder,
    bare,
    build_expert,
    expert_folders,
    manifest,
    model_folder,
    one_thread,
    texts_of,
)

__all__ = [
    "backbone",
    "backbone_folder",
    "bare",
    "build_expert",
    "expert_folders",
    "folder",
    "manifest",
    "model_folder",
    "one_thread",
    "texts_of",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """Stay in the folder of the session."""
    return tmp_path
