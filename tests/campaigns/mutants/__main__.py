"""Run the campaign, as `make mutants` does: `python -m mutants`."""

from __future__ import annotations

from mutants.command import mutants

mutants()
