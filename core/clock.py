"""Where the seconds go."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """Seconds by step; a step that comes twice is added up.

    Attributes:
        steps: Seconds by the step's name, in the order in which they first ended.
    """

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, step: str) -> None:
        """End a step: everything since the one before belongs to it."""
        now = time.perf_counter()
        self.steps[step] = self.steps.get(step, 0.0) + now - self._since
        self._since = now
