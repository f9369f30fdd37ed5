"""The plugin's hook: the task `spans`, whose rows are the words of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redhost import hookimpl
from redhost_spans.span_head import SpanHead
from redhost_spans.words import Words

if TYPE_CHECKING:
    from redhost.core.plugins.hooks import RegisterTask

__all__ = ["redhost_register_tasks"]


@hookimpl
def redhost_register_tasks(register: RegisterTask) -> None:
    """Register the task `spans`."""
    register("spans", SpanHead, unit=Words)
