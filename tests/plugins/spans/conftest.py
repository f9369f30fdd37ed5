"""The task `spans` in this process, as its plugin registers it."""

from __future__ import annotations

import pytest
from redhost_spans import hooks

import redhost

from ...core.conftest import model_folder, one_thread
from ...plugins.author.backbone.test_sentence_folder import encoder

__all__ = ["encoder", "model_folder", "one_thread"]


@pytest.fixture(autouse=True, scope="session")
def spans() -> None:
    """Register the task."""
    hooks.redhost_register_tasks(redhost.plugins.register_task)
