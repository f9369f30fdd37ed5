"""The plugin's hook: a backbone whose encoder runs on onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redhost
from redhost.plugins import hookimpl
from redhost_onnx import ENGINES

__all__ = ["redhost_make_backbone"]


@hookimpl
def redhost_make_backbone(
    manifest: Any, files: Mapping[str, bytes], device: str
) -> redhost.Backbone | None:
    """Make a backbone whose encoder runs on onnxruntime, if the device is one of this plugin's."""
    if device not in ENGINES:
        return None
    from redhost_onnx.encoder import OnnxEncoder  # onnxruntime is imported only if used

    backbone = redhost.Backbone.from_package(manifest, files)
    return backbone.with_trunk(OnnxEncoder(backbone.trunk, manifest.fingerprint, engine=device))
