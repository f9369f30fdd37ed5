"""The router kinds that this plugin brings to hosts, one a file."""

from __future__ import annotations

from redhost.core.routers.base import Router

from .attention import AttentionRouter
from .blend import BlendRouter
from .robust import RobustRouter
from .shortlist import ShortlistRouter

__all__ = ["KINDS", "AttentionRouter", "BlendRouter", "RobustRouter", "ShortlistRouter"]

KINDS: tuple[type[Router], ...] = (AttentionRouter, BlendRouter, RobustRouter, ShortlistRouter)
"""The kinds of this folder."""
