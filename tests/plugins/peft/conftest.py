"""What tests of adapters share with the core's: a random backbone, its experts, generations."""

from __future__ import annotations

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
    texts_of,
)
from ...registry.conftest import make_expert
from ..generate.conftest import composed, context, outcome, speaker, speaking_experts, train_one

__all__ = ["backbone", "backbone_folder", "bare", "build_expert", "composed", "context"]
__all__ += ["expert_folders", "home", "installed", "manifest", "model_folder", "one_thread"]
__all__ += ["make_expert", "outcome", "speaker", "speaking_experts", "texts_of", "train_one"]
