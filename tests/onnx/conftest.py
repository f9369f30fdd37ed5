"""What onnxruntime computes: it is not among what `make test` installs."""

from __future__ import annotations

import pytest

for library in ("onnxruntime", "onnxscript"):
    pytest.importorskip(library, reason="`make .venv/onnx` installs it")
