"""A text encoder whose passes onnxruntime computes, held to those of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

import redhost
from redhost.authoring import TextEncoder
from redhost_onnx import ENGINES
from redhost_onnx.export import exported

__all__ = ["OnnxEncoder"]

onnxruntime: Any = import_module("onnxruntime")  # which has no types

PROBES = (
    "What is 37 plus 12?",
    "The committee meets again on Thursday to talk about the budget of the new library.",
    "gpu driver crashes when the second monitor is plugged in " * 8,
)
"""Texts that an engine is held to."""


class OnnxEncoder(TextEncoder):
    """An encoder on onnxruntime; what acts inside it is computed by torch.

    Args:
        encoder: The same encoder on torch.
        fingerprint: The backbone's.
        engine: One of `redhost_onnx.ENGINES`.

    Raises:
        PluginError: If it computes something else than torch does.
    """

    def __init__(self, encoder: TextEncoder, fingerprint: str, *, engine: str) -> None:
        super().__init__(
            model=encoder.model,
            tokenizer=encoder.tokenizer,
            pooling=encoder.pooling,
            max_tokens=encoder.max_tokens,
            features=encoder.features,
            head=encoder.head,
        )
        self.engine = engine
        versions = f"{onnxruntime.__version__} {torch.__version__}"
        name = f"{engine}-{fingerprint[:32]}-{versions}".replace(" ", "-").replace("+", "-")
        data = exported(encoder, name, int8=engine == "onnx-int8")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(data, options, providers=providers)
        self._hold_to(encoder, ENGINES[engine])

    @property
    def kernels(self) -> str:
        """Name the engine: its features are its own."""
        return f"{self.engine} {onnxruntime.__version__}"

    def passes(self, ids: Sequence[list[int]]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield each text with its h ``(1, D)``, one by one: so its bits are its own."""
        for n, row in enumerate(ids):
            [states] = self.session.run(["states"], {"ids": np.array([row], dtype=np.int64)})
            yield [n], self.pool(torch.from_numpy(states))

    def _hold_to(self, encoder: TextEncoder, tolerance: float) -> None:
        h, mine = encoder.encode(PROBES), self.encode(PROBES)
        worst = float(((mine - h).norm(dim=1) / h.norm(dim=1)).max())
        if not worst <= tolerance:
            raise redhost.errors.PluginError(
                f"the encoder on {self.engine!r} is not the one on torch",
                expected=f"vectors within {tolerance:g} of their length",
                found=f"{worst:.3g}",
                hint="Use --device cpu, and report the backbone.",
            )
