"""What each domain loses without each expert: the router retrained without it, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..answering.composed import Composed
from ..encode import Encode
from ..extending.plugins import Plugins
from ..rows import Row
from .reroute import reroute

__all__ = ["leave_one_out"]


def leave_one_out(
    composed: Composed, rows: Sequence[Row], *, encode: Encode, plugins: Plugins
) -> dict[str, dict[str, float]]:
    """Return, for each expert left out, the accuracy by domain.

    Args:
        composed: The composition; it is left as it is.
        rows: Labelled rows.
        encode: Texts → h.
        plugins: Who makes the routers.
    """
    h, ids = encode([r.text for r in rows]), composed.bus.ids
    told = composed.backbone.unfold(rows)
    return {
        i: reroute(
            composed,
            kind=composed.router_kind,
            ids=[other for other in ids if other != i],
            encode=encode,
            plugins=plugins,
        ).accuracy(h, told)
        for i in ids
        if len(ids) > 1
    }
