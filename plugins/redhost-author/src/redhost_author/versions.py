"""The versions that weights and results of jobs depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version


def library_versions() -> dict[str, str]:
    """Return the versions of libraries that weights and job results depend on."""
    return dict(_versions())


@cache  # each is a file to read, and every job asks
def _versions() -> dict[str, str]:
    names = ("redhost", "torch", "transformers", "safetensors")
    return {"python": platform.python_version(), **{n: version(n) for n in names}}
