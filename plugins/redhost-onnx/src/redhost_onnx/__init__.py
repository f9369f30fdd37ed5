"""Encoders and whole generations on onnxruntime.

``--device onnx`` runs the encoder there, ``onnx-int8`` with weights in eight bits; ``redhost onnx
export`` writes a generation that answers without torch.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ENGINES"]

ENGINES: Mapping[str, float] = {"onnx": 1e-4, "onnx-int8": 0.3}
"""Each device with the maximum deviation of a text's h from torch's, relative to its length."""
