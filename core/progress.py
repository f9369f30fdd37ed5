"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[int, int], None]
"""Called with (done, in all), as often as there is something new to say."""
