"""Calibration of probabilities: of composed answers, and of every expert's own answers.

ECE = Σ_b (n_b / N) · |accuracy of b − mean confidence of b|, fifteen bins of equal width
                                                 `core.evaluation.reliability`
"""

from __future__ import annotations

from typing import Any

import torch

import redhost
from red_lab.text.desk import Desk
from redhost.core.evaluation.judge import judge
from redhost.core.evaluation.reliability import reliability

__all__ = ["probabilities"]


def probabilities(desk: Desk) -> dict[str, Any]:
    """Compose the corpus's own teams; return calibration errors on the test rows.

    Experts are solved linear heads, which `train-expert` chooses most often on these texts.

    Returns:
        For composed answers to all rows, and for each expert's answers to its own rows: the number
        of rows, the error, mean confidence and accuracy.
    """
    settings = redhost.authoring.ExpertSettings(form="linear", space="labels")
    where = f"{desk.corpus.name}-linear"
    composed = desk.compose(
        [
            desk.author(team, rows, where=where, settings=settings)
            for team, rows in desk.parts.items()
        ]
    ).composed
    answered = judge(composed, desk.h(desk.test), desk.test)
    sure, right = [], []
    for column, expert in enumerate(composed.bus.ids):
        rows = [r for r in desk.test if r.domain == expert]
        h = desk.h(rows)
        with torch.inference_mode():
            p = composed.bus.own_answer(h, composed.bus.norm(h), column)
        sure.append(p.amax(-1))
        labels = composed.bus.answered_by(column)
        right.append(composed.bus.task.head.right(p, rows, labels))
    return {
        "composed": _figures(answered.confidence, answered.hits),
        "each": _figures(torch.cat(sure), torch.cat(right)),
    }


def _figures(confidence: torch.Tensor, hits: torch.Tensor) -> dict[str, float]:
    return {
        "rows": len(hits),
        "ece": reliability(confidence, hits).ece,
        "confidence": float(confidence.double().mean()),
        "accuracy": float(hits.double().mean()),
    }
