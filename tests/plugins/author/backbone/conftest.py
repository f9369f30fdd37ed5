"""A tiny model, and one thread, as in the core's tests: bits may depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ....core.conftest import bare, model_folder, one_thread

__all__ = ["bare", "folder", "hub_cache", "model_folder", "offline_hub", "one_thread"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """Stay in the folder of the session, as does the process by which backbones are tried."""
    return tmp_path


@pytest.fixture(scope="session")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub for all tests, and so for one process by which backbones are tried."""
    return tmp_path_factory.mktemp("hub")


@pytest.fixture
def offline_hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let that cache be the one of a machine without network; each test has names of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub_cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub_cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return hub_cache
