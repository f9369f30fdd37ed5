"""The receipt's report on declining: thresholds, and whether there are enough gate rows."""

from __future__ import annotations

import math

from ..model.composed import ComposedModel
from ..model.conformal import rows_needed, too_few
from ..receipt import Decline


def decline_report(model: ComposedModel) -> Decline | None:
    """Return which texts a composition declines; None if no share was given."""
    share, known, ids = model.decline, model.calibration, model.bus.ids
    if share is None:
        return None
    t = model.decline_thresholds
    numbers = [-math.inf] * len(ids) if t is None else t.tolist()
    thresholds = {i: None if x == -math.inf else x for i, x in zip(ids, numbers, strict=True)}
    rows = dict.fromkeys(ids, 0) if known is None else known.rows(ids)
    return Decline(
        share=share,
        rows=rows,
        thresholds=thresholds,
        needed=rows_needed(share),
        warnings=too_few(rows, share),
    )
