"""Section `peers`: redhost compared with other adapter libraries, on the same work in one run.

Heavy modules are imported at call time, since a worker in another environment imports this too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from red_lab.bench.section import SectionSettings

__all__ = ["TITLE", "draw", "measure", "page"]

TITLE = "Side by side with the peers"


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Measure everything, each library in its own processes."""
    from red_lab.bench.peers.run import measure as run

    return run(settings)


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    from red_lab.bench.peers.tables import page as write

    return write(found)


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Write peers.svg."""
    from red_lab.bench.peers.figure import draw as write

    write(found, folder)
