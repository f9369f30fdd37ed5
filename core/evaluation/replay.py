"""Gate rows once more: does a generation answer here as it did where it was composed?

Bits are the same on the same build of the libraries; another machine, device or version may differ
in last bits and so in a row or two. What differs by more is not the generation that was judged.
"""

from __future__ import annotations

from ...registry.errors import CompositionError
from ..model.composed import ComposedModel, by_domain
from ..receipt import Accuracy
from ..routers.cards import gate_rows
from .judge import judge

SHARE, ROWS = 0.01, 2
"""How much less of a domain's gate rows may be right: a point, or two rows where that is more."""


def replay_gates(model: ComposedModel, published: Accuracy) -> dict[str, float]:
    """Answer the cards' gate rows, and compare with what the receipt says of them.

    Args:
        model: The generation.
        published: Its receipt's figures.

    Returns:
        Share of the rows that are answered rightly here, 0–1, by domain.

    Raises:
        CompositionError: If a domain has less than was published.
    """
    cards, backbone = [*model.cards.values()], model.backbone
    h, rows = gate_rows(cards, encode=backbone.encode, unit_rows=backbone.unit_rows)
    here = by_domain(judge(model, h, rows, cards=True).hits, rows) if rows else {}
    for domain, share in published.after.items():
        count = published.rows[domain]
        if share - here.get(domain, 0.0) > max(SHARE, ROWS / count) + 1e-9:
            raise CompositionError(
                f"generation {model.generation} does not answer as it did where it was composed",
                expected=f"{share:.3f} of {count} gate rows of {domain!r} right",
                found=f"{here.get(domain, 0.0):.3f}",
                hint="Compare the versions of torch, the device and the plugins of both machines.",
            )
    return here
