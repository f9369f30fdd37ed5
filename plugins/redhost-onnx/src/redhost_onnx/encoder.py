"""A text encoder that runs on onnxruntime, with its vectors checked against torch's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redhost.plugins import EngineEncoder, TextEncoder
from redhost_onnx import ENGINES
from redhost_onnx.export import exported

__all__ = ["OnnxEncoder"]

onnxruntime: Any = import_module("onnxruntime")  # it has no type hints


class OnnxEncoder(EngineEncoder):
    """An encoder on onnxruntime; modules that act inside it are computed by torch.

    Args:
        encoder: The same encoder on torch.
        fingerprint: The backbone's.
        engine: One of `redhost_onnx.ENGINES`.

    Raises:
        BackboneMismatchError: If its vectors differ from torch's by more than allowed.
    """

    def __init__(self, encoder: TextEncoder, fingerprint: str, *, engine: str) -> None:
        super().__init__(encoder)
        self.engine, self.tolerance = engine, ENGINES[engine]
        versions = f"{onnxruntime.__version__} {torch.__version__}"
        name = f"{engine}-{fingerprint[:32]}-{versions}".replace(" ", "-").replace("+", "-")
        data = exported(encoder, name, int8=engine == "onnx-int8")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(data, options, providers=providers)
        self.hold_to(encoder)

    @property
    def kernels(self) -> str:
        """The engine's name: its features have their own cache entries."""
        return f"{self.engine} {onnxruntime.__version__}"

    def passes(self, ids: Sequence[list[int]]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield each text with its h ``(1, D)``, one by one, so h is independent of the batch."""
        for n, row in enumerate(ids):
            [states] = self.session.run(["states"], {"ids": np.array([row], dtype=np.int64)})
            yield [n], self.pool(torch.from_numpy(states))
