"""Run the study on a corpus, step by step, and write the results as metrics and a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from red_lab.intervals import interval
from red_lab.metrics import cached_json, read_metrics, write_results
from red_lab.text.adapters import RANK, SIZES, adapters, rank_of_all
from red_lab.text.adapters_report import summarise_adapters
from red_lab.text.corpora import CORPORA
from red_lab.text.desk import Desk, open_desk
from red_lab.text.joins import deal_joins
from red_lab.text.measure import CURVE, curve, measure, monoliths, of_seeds
from red_lab.text.noise import noise
from red_lab.text.probabilities import probabilities
from red_lab.text.report import page

__all__ = ["PARTS", "Extent", "run", "summarise"]

JOINING: Mapping[str, int] = {"newsgroups": 2, "newswire": 5}
"""Corpora whose labels are reassigned for newcomers → the first deal that is evaluated: the rule
that refuses newcomers was tuned on earlier deals. Mixed sources differ in kind and are left out."""
JOIN = ("deal", "team", "kind", "accepted", "fall", "reason")
"""The fields of a join that are kept."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The extent of a measurement.

    Attributes:
        encoder: One of `ENCODERS`.
        parts: Names from `PARTS`; existing results of other parts are kept.
        seeds: Number of seeds; the split is the data's own.
        deals: Number of random assignments of labels to teams for newcomers.
        validation: Evaluate on held-out training rows; test files are not opened.
    """

    encoder: str
    parts: Sequence[str]
    seeds: int
    deals: int = 0
    validation: bool = False


def run(names: Sequence[str], extent: Extent, *, out: Path, work: Path) -> Path:
    """Measure corpora, and add their metrics to the others', with a page of all of them.

    Args:
        names: Names of the corpora.
        extent: The extent of the measurement.
        out: The folder for results.
        work: The folder for packages, features and finished steps.
    """
    for name in names:
        measured = _measured(name, extent, work=work)
        every, key = read_metrics(out), f"{name} {extent.encoder}"
        write_results(every | {key: every.get(key, {}) | measured}, out, page=page)
    return out / "metrics.json"


def _measured(name: str, extent: Extent, *, work: Path) -> dict[str, Any]:
    """Measure the parts of a corpus that are not measured yet."""
    work.mkdir(parents=True, exist_ok=True)
    desk = open_desk(CORPORA[name], encoder=extent.encoder, work=work, validation=extent.validation)
    steps, found = _Steps(desk=desk, extent=extent), dict[str, Any]()
    for part, take in PARTS.items():
        if part in extent.parts:
            found |= take(steps)
    return {
        "schema": "red-lab.text/1",
        "corpus": name,
        "encoder": extent.encoder,
        "validation": extent.validation,
        **found,
    }


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The measurements of a corpus, part by part; finished steps are not repeated."""

    desk: Desk
    extent: Extent

    def once(self, step: str, make: Callable[[], Any]) -> Any:
        """Return the result of a step, which is cached as a file."""
        rows = "validation" if self.extent.validation else "test"
        start = f"{self.desk.corpus.name}-{self.extent.encoder}-{rows}"
        return cached_json(self.desk.work / f"{start}-{step}.json", make)

    def sizes(self, points: Sequence[int]) -> list[int]:
        """Return the numbers of rows that are below the largest team's."""
        most = max(len(p.rows) for p in self.desk.parts.values())
        return [n for n in points if n < most]

    def systems(self) -> dict[str, Any]:
        """Return every system's accuracy."""
        seeds = range(self.extent.seeds)
        measured = [self.once(f"seed-{s}", partial(measure, self.desk, seed=s)) for s in seeds]
        whole = self.once("monoliths", partial(monoliths, self.desk))
        return summarise(self.desk, measured, whole)

    def curve(self) -> dict[str, Any]:
        """Return accuracy by the number of rows of a team."""
        sizes = [*self.sizes(CURVE), None]  # the last point is all of them
        return {"curve": [self.once(f"of-{n}", partial(curve, self.desk, n)) for n in sizes]}

    def probabilities(self) -> dict[str, Any]:
        """Return calibration errors, also on held-out training rows of the same period."""
        name, encoder, work = self.desk.corpus.name, self.extent.encoder, self.desk.work

        def aside() -> dict[str, Any]:
            again = open_desk(CORPORA[name], encoder=encoder, work=work, validation=True)
            return probabilities(again)

        return {
            "probabilities": self.once("probabilities", partial(probabilities, self.desk)),
            "probabilities_aside": self.once("probabilities-aside", aside),
        }

    def noise(self) -> dict[str, Any]:
        """Return the accuracy that private sums cost."""
        return {"noise": self.once("noise", partial(noise, self.desk))}

    def adapters(self) -> dict[str, Any]:
        """Return the value of a second pass."""
        sizes, desk = self.sizes(SIZES), self.desk
        points = [self.once(f"adapters-of-{n}", partial(adapters, desk, n)) for n in sizes]
        return {
            "adapters": summarise_adapters([r.text for r in desk.test], points),
            "adapter_ranks": {"small": RANK, "large": rank_of_all(desk)},
        }

    def joins(self) -> dict[str, Any]:
        """Return which newcomers are accepted; corpora outside `JOINING` have none."""
        first = JOINING.get(self.desk.corpus.name)
        if first is None:
            return {}
        joined = list[dict[str, Any]]()
        for deal in range(first, first + self.extent.deals):
            joined += self.once(f"deal-{deal}", partial(deal_joins, self.desk, deal))
        return {"joins": [{k: x[k] for k in JOIN} for x in joined]}


PARTS: Mapping[str, Callable[[_Steps], dict[str, Any]]] = {
    "systems": _Steps.systems,
    "curve": _Steps.curve,
    "probabilities": _Steps.probabilities,
    "noise": _Steps.noise,
    "adapters": _Steps.adapters,
    "joins": _Steps.joins,
}
"""The parts that can be measured of a corpus, independently of each other."""


def summarise(
    desk: Desk, measured: Sequence[Mapping[str, Any]], whole: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Return accuracies, and differences to the best monolith, with intervals over texts."""
    texts = [r.text for r in desk.test]
    clusters = [t for _ in measured for t in texts]
    hits = {n: np.array([x for m in measured for x in m["hits"][n]]) for n in measured[0]["hits"]}
    hits |= {f"monolith {n}": np.array(list(x) * len(measured)) for n, x in whole.items()}
    same = [n for n in hits if n.startswith("monolith") and n != "monolith words"]
    best = max(same, key=lambda n: float(hits[n].mean()))
    systems = {}
    for name, values in hits.items():
        low, high = interval(values, clusters)
        worse, better = interval(values - hits[best], clusters)
        mean = float((values - hits[best]).mean())
        systems[name] = {
            "accuracy": float(values.mean()),
            "low": low,
            "high": high,
            "difference": {"mean": mean, "low": worse, "high": better},
        }
    outside = measured[0]["strangers"]
    return {
        "seeds": len(measured),
        "rows": len(texts),
        "labels": sum(len(y) for y in desk.corpus.teams.values()),
        "train_rows": {t: len(p.rows) for t, p in desk.parts.items()},
        "best": best,
        "systems": systems,
        "router": measured[0]["router"],
        "forms": {f: sum(m["forms"].count(f) for m in measured) for f in sorted(_forms(measured))},
        "domain": of_seeds(measured, "domain"),
        "sets": {k: of_seeds(measured, "sets", k) for k in measured[0]["sets"]},
        "strangers": {
            s: {k: of_seeds(measured, "strangers", s, k) for k in found}
            for s, found in outside.items()
        },
    }


def _forms(measured: Sequence[Mapping[str, Any]]) -> set[str]:
    return {form for m in measured for form in m["forms"]}
