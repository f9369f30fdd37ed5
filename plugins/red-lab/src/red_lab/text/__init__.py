"""`redhost lab text`: teams on one encoder of real texts, against models of pooled data.

No label belongs to two teams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from red_lab.intervals import mean_within
from red_lab.metrics import Metrics
from red_lab.readme import refresh_here
from red_lab.study import Cell, Study
from red_lab.text.corpora import CORPORA

__all__ = ["PARTS", "STUDY", "TITLES", "measure", "text"]

PARTS: Mapping[str, tuple[str, str, str]] = {
    "newsgroups": ("newsgroups", "minilm", "systems"),
    "newsgroups-curve": ("newsgroups", "minilm", "curve"),
    "newsgroups-joins": ("newsgroups", "minilm", "joins"),
    "newswire": ("newswire", "minilm", "systems"),
    "newswire-joins": ("newswire", "minilm", "joins"),
    "sources": ("sources", "minilm", "systems"),
    "sources-curve": ("sources", "minilm", "curve"),
    "sources-mpnet": ("sources", "mpnet", "systems"),
    "verses": ("verses", "minilm", "systems"),
    "diagnoses": ("diagnoses", "minilm", "systems"),
}
"""Part → its corpus, its encoder, and what is measured."""

TITLES = {
    "pooled tf-idf": "logistic regression on tf-idf of whole texts, no encoder, pooled rows",
    "pooled logistic": "logistic regression on words and states, pooled rows",
    "pooled ridge": "one expert of words, trained on the pooled rows",
    "default": "**experts under `redhost recompose`, the default**",
    "linear": "experts that do not read words (`--form linear`, router `ridge`)",
    "counts and ridge": "no expert: counts and ridge, the scores of the router `words`",
    "counts alone": "no expert: naive Bayes of the packages' counts",
    "ridge alone": "no expert: ridge regression from the cards' sums",
    "random": "experts with shuffled parameters, default router",
    "uniform": "experts, uniform weights",
    "oracle": "experts, oracle routing (label-informed)",
}
"""System → its row; a system that was not measured has none."""

REFERENCES = ("pooled logistic", "pooled ridge")
"""Models of the same words and states as the experts; the better one is the reference."""


def measure(cell: Cell, *, validation: bool = False, rows: int | None = None) -> Any:
    """Return the results of a cell.

    Args:
        cell: A part; of joins, the seed counts deals.
        validation: Take both training and test rows from the training rows.
        rows: Rows of a team; None for all.
    """
    from red_lab.text.desk import open_desk
    from red_lab.text.joins import JOINING, deal_joins
    from red_lab.text.systems import curve, systems

    corpus, encoder, what = PARTS[cell.part]
    desk = open_desk(
        CORPORA[corpus], encoder=encoder, work=cell.work / "text", validation=validation
    ).having(rows)
    if what == "joins":
        return deal_joins(desk, JOINING[corpus] + cell.seed)
    return curve(desk) if what == "curve" else systems(desk)


def summarise(part: str, measured: Sequence[Any]) -> Any:
    """Return the metrics of a part: of systems, accuracies and paired differences."""
    *_, what = PARTS[part]
    if what == "joins":
        return [join for deal in measured for join in deal]
    [found] = measured
    return found if what == "curve" else _systems(found)


def _systems(found: Mapping[str, Any]) -> dict[str, Any]:
    """Replace hits by accuracies, and differences to the better reference; intervals over texts.

    ``added`` is what experts add to the router's own scores.
    """
    hits = {name: np.array(right) for name, right in found["hits"].items()}
    texts = [str(n) for n in found["texts"]]
    mean = partial(mean_within, clusters=texts)
    best = max(REFERENCES, key=lambda name: float(hits[name].mean()))

    return {
        "rows": len(texts),
        "best": best,
        "systems": {
            name: {"accuracy": mean(hits[name]), "difference": mean(hits[name] - hits[best])}
            for name in TITLES
            if name in hits
        },
        "added": mean(hits["default"] - hits["counts and ridge"]),
        **{key: value for key, value in found.items() if key not in {"hits", "texts"}},
    }


def names(_: Metrics) -> Mapping[str, object]:
    """Return what the page names, and the kinds of newcomers in order."""
    from red_lab.models import ENCODERS
    from red_lab.text.joins import HONEST, KINDS
    from red_lab.text.systems import SETS

    return {
        "parts": PARTS,
        "corpora": CORPORA,
        "encoders": ENCODERS,
        "titles": TITLES,
        "sets": SETS,
        "honest": HONEST,
        "hijacks": KINDS,
    }


STUDY = Study(
    name="text",
    help="Compare teams' experts on real texts with pooled training.",
    schema="red-lab.text/2",
    parts=tuple(PARTS),
    once=tuple(part for part, (*_, what) in PARTS.items() if what != "joins"),
    seeds=4,
    measure=measure,
    summarise=summarise,
    names=names,
    draw=lambda *_: refresh_here(),
)
text = STUDY.command
