"""Encoders on onnxruntime: ``--device onnx``, or ``onnx-int8`` with weights in eight bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redhost
from redhost.plugins import hookimpl

__all__ = ["ENGINES", "redhost_make_backbone"]

ENGINES: Mapping[str, float] = {"onnx": 1e-4, "onnx-int8": 0.3}
"""Each with the most that a text's h may be away from torch's, as a share of its length."""


@hookimpl
def redhost_make_backbone(
    manifest: Any, files: Mapping[str, bytes], device: str
) -> redhost.Backbone | None:
    """Make a backbone whose encoder runs on onnxruntime, where the device says so."""
    if device not in ENGINES:
        return None
    from redhost_onnx.encoder import OnnxEncoder  # onnxruntime is imported where it is wanted

    backbone = redhost.Backbone.from_package(manifest, files)
    return backbone.with_trunk(OnnxEncoder(backbone.trunk, manifest.fingerprint, engine=device))
