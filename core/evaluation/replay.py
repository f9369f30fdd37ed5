"""Replay of gate rows: check that a generation answers as it did where it was composed.

Results are bitwise identical on the same build of the libraries. Another machine, device or version
may differ in the last bits, and so in a row or two. A larger difference means that this is not the
generation that was judged.
"""

from __future__ import annotations

from ...registry.errors import CompositionError
from ..model.composed import ComposedModel, by_domain
from ..receipt import Accuracy
from ..routers.cards import gate_rows
from .judge import judge

SHARE, ROWS = 0.01, 2
"""Largest allowed loss on a domain's gate rows: one point or two rows, whichever is larger."""


def replay_gates(model: ComposedModel, published: Accuracy) -> dict[str, float]:
    """Answer the cards' gate rows, and compare the accuracy with that of the receipt.

    Args:
        model: The generation.
        published: The figures of its receipt.

    Returns:
        Share of rows that are answered correctly here, 0–1, by domain.

    Raises:
        CompositionError: If the accuracy of a domain is lower than published by more than allowed.
    """
    cards, backbone = [*model.cards.values()], model.backbone
    h, rows = gate_rows(cards, encode=backbone.encode, backbone=backbone)
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
