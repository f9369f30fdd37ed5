"""What is wrong with a game: a usage error that is a ValueError too."""

from __future__ import annotations

from redhost.registry.errors import UsageError

__all__ = ["GameError"]


class GameError(UsageError, ValueError):
    """A game, a gate or a setting cannot mean anything as written."""
