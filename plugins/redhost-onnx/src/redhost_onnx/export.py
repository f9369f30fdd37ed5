"""An encoder as an ONNX file: exported once, cached for the user under the key of its sources."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from redhost.plugins import TextEncoder

__all__ = ["exported", "silent"]

log = logging.getLogger("redhost")


def exported(encoder: TextEncoder, name: str, *, int8: bool) -> bytes:
    """Return the ONNX file of an encoder; a cached file with another digest is exported anew.

    Args:
        encoder: The encoder.
        name: The key of its sources: fingerprint and versions.
        int8: Whether weights are held in eight bits.
    """
    folder = _folder()
    for path in sorted(folder.glob(f"{name}.*.onnx")):
        data = path.read_bytes()
        if path.name == f"{name}.{_digest(data)}.onnx":
            return data
        log.warning("%s is damaged and made anew", path)
        path.unlink()
    log.info("the encoder is exported for onnxruntime, once")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch, "encoder.onnx")
        _export(encoder, made)
        if int8:
            made = _quantized(made)
        data = made.read_bytes()
        made.replace(folder / f"{name}.{_digest(data)}.onnx")
    return data


def _folder() -> Path:
    named = os.environ.get("REDHOST_ONNX_CACHE")
    if named is None:
        from platformdirs import user_cache_dir

        named = user_cache_dir("redhost-onnx")
    folder = Path(named)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


class _States(nn.Module):
    """The states from which h is pooled, for a text without padding."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.model, self.encoder = encoder.model, encoder

    def forward(self, ids: Tensor) -> Tensor:
        """Return states ``(B, T, D)`` for token ids ``(B, T)``."""
        model: Any = self.model
        output = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            output_hidden_states=self.encoder.features is not None,
            use_cache=False,
        )
        return self.encoder.read(output)


def _export(encoder: TextEncoder, path: Path) -> None:
    longest = encoder.longest or 4096
    shape = {
        0: torch.export.Dim("texts", min=1, max=4096),
        1: torch.export.Dim("tokens", min=2, max=max(longest, 32)),
    }
    with encoder.lock, torch.no_grad(), silent():
        torch.onnx.export(
            _States(encoder).eval(),
            (torch.arange(34).reshape(2, 17) % encoder.model.config.vocab_size,),
            path,
            input_names=["ids"],
            output_names=["states"],
            dynamo=True,
            dynamic_shapes=(shape,),
            external_data=False,
            verbose=False,
        )


@contextmanager
def silent() -> Iterator[None]:
    """Suppress the exporter's messages in a ``with`` block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _quantized(path: Path) -> Path:
    library: Any = import_module("onnxruntime.quantization")
    made = path.with_name("int8.onnx")
    library.quantize_dynamic(path, made, weight_type=library.QuantType.QInt8, per_channel=True)
    return made
