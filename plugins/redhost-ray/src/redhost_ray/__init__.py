"""redhost's jobs on Ray Core. Ray is imported when the engine runs, not when it is listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redhost import hookimpl
from redhost_ray.engine import RayEngine

__all__ = ["RayEngine", "redhost_register_engines"]


@hookimpl
def redhost_register_engines(register: Callable[[str, Any], None]) -> None:
    """Register the engine `ray`."""
    register("ray", RayEngine())
