"""Section `peers`: redhost compared with other adapter libraries, on the same work in one run.

A worker in another environment imports this package too: what it lacks is imported at call time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.bench.section import Section, SectionSettings

__all__ = ["SECTION"]


def _measure(settings: SectionSettings) -> Mapping[str, Any]:
    """Measure everything, each library in its own processes."""
    from red_lab.bench.peers.run import measure

    return measure(settings)


SECTION = Section(name="peers", measure=_measure)
