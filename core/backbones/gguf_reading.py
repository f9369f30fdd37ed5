"""What transformers repeats while it loads a GGUF file, done once.

It reads the file's header, vocabulary and all, for the configuration, for the tokenizer and for the
weights, and makes the same table of tensors' names for every module of the model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

_TURN = threading.Lock()
"""Held while the library's functions are replaced: another load must not restore our own."""


@contextmanager
def header_read_once() -> Iterator[None]:
    """Remember within a ``with`` block what the gguf library has read and made.

    Nothing is remembered after it: by then the file may be another. Loads take turns.
    """
    try:
        gguf: Any = import_module("gguf")
    except ImportError:  # transformers says so, by name
        yield
        return
    with _TURN:
        before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
        vars(gguf).update({name: cache(made) for name, made in before.items()})
        try:
            yield
        finally:
            vars(gguf).update(before)
