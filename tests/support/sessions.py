"""Texts in progress that are given their next tokens by hand."""

from __future__ import annotations

from collections.abc import Sequence

from redhost_generate.batch import step_batch
from redhost_generate.sessions import Session


def step_together(sessions: Sequence[Session], tokens: Sequence[Sequence[int]]) -> None:
    """Read more tokens of each session in one pass."""
    for session, ids in zip(sessions, tokens, strict=True):
        session.unread = [*ids]
    step_batch(sessions)
