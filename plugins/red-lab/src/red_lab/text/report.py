"""Render the page of the study of real texts from its metrics."""

from __future__ import annotations

from red_lab.metrics import Metrics
from red_lab.newsgroups import DATA
from red_lab.rendering import render
from red_lab.text.adapters_report import adapter_lines
from red_lab.text.corpora import CORPORA
from red_lab.text.encoders import ENCODERS
from red_lab.text.joins import by_kind
from red_lab.text.measure import KINDS, SETS
from red_lab.text.monoliths import MONOLITHS

__all__ = ["page"]

DEFAULT = "routed"
TITLES = {
    **{f"monolith {name}": title for name, (title, _) in MONOLITHS.items()},
    DEFAULT: "**experts under `redhost recompose`, the default**",
    **{f"router {kind}": f"experts under `--router {kind}`" for kind in KINDS},
    "oracle": "experts, oracle routing (label-informed)",
    "no expert, discriminants": "no expert: linear discriminants from the cards' sums",
    "no expert, ridge": "no expert: ridge regression from the cards' sums",
    "random experts": "experts with shuffled parameters, default router",
    "uniform": "experts, uniform weights",
    "best_single": "best single expert (selected on these test rows)",
}
JOINS = {
    "honest": "its own rows and sums (honest)",
    "another's rows and sums": "the rows and sums of another team",
    "another's sums": "the sums of another team",
    "another's rows and sums beside its own": "its own and another team's rows and sums",
    "twenty times as many, another's among them": "twenty times too many rows, its own and another "
    "team's",
    "its sums moved to another's mean": "its own sums, shifted to another team's mean",
    "twenty times as many as its own": "twenty times as many rows as it has",
    "another's rows and labels, each a place further": "another team's rows and labels, the labels "
    "shifted by one",
    "another's rows and sums, loud": "the rows and sums of another team; overconfident answers",
    "its own, a hundred times as long": "its own vectors and sums, scaled by 100",
    "other rows of another's domain": "other rows from another team's domain",
}
"""Kind of newcomer in the metrics → the table's row."""


def page(every: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.text/1``, by corpus and encoder."""
    studies = [
        (every[f"{corpus} {encoder}"], CORPORA[corpus], ENCODERS[encoder])
        for encoder in ENCODERS
        for corpus in CORPORA
        if f"{corpus} {encoder}" in every
    ]
    text = render(
        "text",
        {},
        studies=studies,
        data=DATA,
        titles=TITLES,
        newcomers=JOINS,
        sets=SETS,
        adapter_lines=adapter_lines,
        by_kind=by_kind,
    )
    return f"{text.rstrip()}\n"
