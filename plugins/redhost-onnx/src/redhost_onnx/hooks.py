"""The plugin's hook: backbones whose encoders run on onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import redhost
from redhost import hookimpl
from redhost_onnx import ENGINES

__all__ = ["redhost_register_backbones"]


@hookimpl
def redhost_register_backbones(register: Callable[[str, Any], None]) -> None:
    """Register a backbone for each device of this plugin."""
    for engine in ENGINES:
        register(engine, _backbone)


def _backbone(manifest: Any, files: Mapping[str, bytes], device: str) -> redhost.Backbone:
    """Make a backbone whose encoder runs on onnxruntime."""
    from redhost_onnx.encoder import OnnxEncoder  # onnxruntime is imported only if used

    backbone = redhost.Backbone.from_package(manifest, files)
    return backbone.with_trunk(OnnxEncoder(backbone.trunk, manifest.fingerprint, engine=device))
