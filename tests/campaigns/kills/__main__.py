"""Run the campaigns, as `make kills` does: `python -m kills`."""

from __future__ import annotations

from kills.command import kills

kills()
