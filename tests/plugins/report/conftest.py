"""The small world of the core's tests: a random backbone, and experts as real packages on disk."""

from __future__ import annotations

from ...core.conftest import (
    backbone,
    backbone_folder,
    bare,
    build_expert,
    expert_folders,
    manifest,
    model_folder,
    one_thread,
)

__all__ = ["backbone", "backbone_folder", "bare", "build_expert", "expert_folders", "manifest"]
__all__ += ["model_folder", "one_thread"]
