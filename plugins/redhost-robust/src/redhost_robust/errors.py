"""The error for an invalid game: a usage error that is also a ValueError."""

from __future__ import annotations

from redhost.registry.errors import UsageError

__all__ = ["GameError"]


class GameError(UsageError, ValueError):
    """A game, a gate or a setting is invalid as written."""
