"""Jobs of redhost, on this machine and on Ray Core.

`redhost_ray.jobs` has the names for engines of other packages. Nothing heavy is imported before it
is used: neither torch by ``--help``, nor Ray where another engine runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redhost import hookimpl

__all__ = ["redhost_register_engines"]


@hookimpl
def redhost_register_engines(register: Callable[[str, Any], None]) -> None:
    """Register the engine `ray`."""
    from redhost_ray.engine import RayEngine

    register("ray", RayEngine())
