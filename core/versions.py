"""The versions of the libraries that bits depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

__all__ = ["library_versions"]


def library_versions() -> dict[str, str]:
    """Return the versions that weights, and what jobs make, depend on."""
    return dict(_found())


@cache  # each is a file to read, and every job asks
def _found() -> dict[str, str]:
    names = ("redhost", "torch", "transformers", "safetensors")
    return {"python": platform.python_version(), **{n: version(n) for n in names}}
