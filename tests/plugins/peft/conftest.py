"""What tests of adapters share with the core's: a random backbone, its experts, generations."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from redhost_peft.package import HEAD
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from safetensors.numpy import save

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
from ..generate.conftest import context, speaker
from .peft_files import D, R, files

__all__ = ["backbone", "backbone_folder", "bare", "build_expert", "context"]
__all__ += ["expert_folders", "home", "installed", "manifest", "model_folder", "one_thread"]
__all__ += ["make_expert", "speaker", "texts_of"]

Files = dict[str, Any]


@pytest.fixture
def package(make_expert: Any) -> Callable[..., Files]:
    """Return the function that makes an adapter's package, with changes to its manifest."""

    def make(change: dict[str, Any] | None = None, **parts: bytes) -> Files:
        raw, weights = files()
        out = 3 if (change or {}).get("writes.space") == "labels" else D
        rows = {"z": np.ones((2, D), "f4"), "delta": np.ones((2, out), "f4")}
        given = {
            CONFIG: raw,
            WEIGHTS: weights,
            "canary.safetensors": save(rows | {"tokens": np.ones((2, 5), "i8")}),
        } | {n.replace("__", "."): data for n, data in parts.items()}
        sha = {n: sha256(data).hexdigest() for n, data in given.items()}
        made = {
            "form": "lora",
            "activation": "identity",
            "rank": R,
            "weights": {"file": WEIGHTS, "sha256": sha[WEIGHTS]},
            "files": {n: sha[n] for n in (CONFIG, HEAD) if n in given},
            "canary.sha256": sha["canary.safetensors"],
        }
        whole: Files = make_expert(
            "a", change={k: v for k, v in (made | (change or {})).items() if v is not ...}
        )
        return {**whole, **given}

    return make
