"""Avoid work that transformers repeats while it loads a GGUF file.

It reads the whole header, including the vocabulary, for the configuration, again for the tokenizer
and again for the weights, and rebuilds the same table of tensor names for every module.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_TURN = threading.Lock()
"""Held while functions of the gguf library are patched, so that loads do not interfere."""

DESCRIBES = ("GGUF.", "general.", "quantize.", "split.", "tokenizer.")
"""Beginnings of the keys that describe a file, or its tokenizer, rather than what it computes."""


def metadata(file: Path) -> dict[str, Any]:
    """Return what a file's header says about the model: architecture and hyperparameters.

    Read from the file, because what transformers makes of it changes from version to version.
    """
    gguf: Any = import_module("gguf")
    fields = gguf.GGUFReader(str(file)).fields
    counted = {k: f.contents() for k, f in fields.items() if not k.startswith(DESCRIBES)}
    return {**counted, "general.architecture": fields["general.architecture"].contents()}


@contextmanager
def header_read_once() -> Iterator[None]:
    """Cache, within a ``with`` block, the headers and name tables of the gguf library.

    The cache is dropped afterwards, because the file may change. Only one load runs at a time.
    """
    try:
        gguf: Any = import_module("gguf")
    except ImportError:  # transformers raises an error that names the missing package
        yield
        return
    with _TURN:
        before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
        vars(gguf).update({name: cache(original) for name, original in before.items()})
        try:
            yield
        finally:
            vars(gguf).update(before)
