"""A tiny model, and one thread, as in the core's tests: bits may depend on it."""

from __future__ import annotations

from ....core.conftest import bare, model_folder, one_thread

__all__ = ["bare", "model_folder", "one_thread"]
