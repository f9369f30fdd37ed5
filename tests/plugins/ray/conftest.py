"""What tests of jobs share: their own function, which the table of functions has beside others."""

from __future__ import annotations

import pytest
from redhost_ray.functions import FUNCTIONS

from ...core.conftest import (
    backbone,
    backbone_folder,
    bare,
    build_expert,
    expert_folders,
    home,
    installed,
    manifest,
    model_folder,
    one_thread,
)
from .echo import echo

__all__ = ["backbone", "backbone_folder", "bare", "build_expert", "expert_folders", "home"]
__all__ += ["installed", "manifest", "model_folder", "one_thread", "registered_echo"]


@pytest.fixture(autouse=True)
def registered_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, echo.name, echo)
