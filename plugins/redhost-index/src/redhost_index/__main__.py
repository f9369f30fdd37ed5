"""`python -m redhost_index FOLDER` is `redhost catalogue FOLDER`, where no plugin is installed."""

from __future__ import annotations

from .cli import catalogue

catalogue()
