"""One thread, as in the core's tests: bits may depend on it."""

from __future__ import annotations

from ...core.conftest import one_thread

__all__ = ["one_thread"]
