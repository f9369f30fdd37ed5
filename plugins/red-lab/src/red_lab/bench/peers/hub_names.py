"""AdapterHub's systems by name: known here, made where it is installed."""

from __future__ import annotations

__all__ = ["HUB"]

HUB = ("hub floor", "adapters fuse", "adapters average")
