"""Measure the accuracy of a regression that is solved from a card's sums after mapping them.

No text of the rows is encoded again (`Statistics.moved`). The regression is onto all labels, from
the sums alone, as a router's would be.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from redhost_port.affine_map import fit_affine
from torch import Tensor, nn

import redhost
from red_lab.intervals import interval
from red_lab.port.subjects import LEARN, PAIRS, Pair, open_backbone, teams
from red_lab.text.corpora import CORPORA
from red_lab.text.desk import best_of, hits
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import LeastSquares
from redhost.core.training.context import AuthoringContext

__all__ = ["lines", "measure"]

PENALTIES = tuple(10.0**n for n in range(-1, 5))

SYSTEMS = {
    "old": "sums of the old vectors, on the old backbone",
    "pushed": "**the same sums, mapped to the new backbone**",
    "as they are": "the same sums, used on the new backbone unchanged",
    "read again": "sums of the new vectors: every text encoded again",
}


def measure(*, work: Path, validation: bool) -> dict[str, Any]:
    """Measure the sentence encoder and its next version on each corpus."""
    pairs = [p for p in PAIRS.values() if p.new == "minilm-next"]
    return {p.corpus: _measured(p, work=work, validation=validation) for p in pairs}


def _measured(pair: Pair, *, work: Path, validation: bool) -> dict[str, Any]:
    old, new = (open_backbone(n, pair.corpus, work=work)[1] for n in (pair.old, pair.new))
    every = teams(pair.corpus, validation=validation)
    learn, judge = [r for t in every for r in t.learn], [r for t in every for r in t.judge]
    others = _others(pair.corpus, learn, validation=validation)
    labels = [r.label for r in learn]
    before, after = (Statistics.of_rows(_z(c, learn), labels) for c in (old, new))
    fitted = fit_affine(_z(old, others), _z(new, others))
    moved = before.moved(fitted.A, fitted.c, spread=fitted.spread)
    penalty = _penalty(before, _z(old, learn), labels)
    found = {
        name: hits(best_of(sums.labels, _score(sums, _z(on, judge), penalty)), judge)
        for name, sums, on in (
            ("old", before, old),
            ("pushed", moved, new),
            ("as they are", before, new),
            ("read again", after, new),
        )
    }
    return {
        "rows": len(judge),
        "labels": len(before.labels),
        "texts": len(others),
        "systems": {name: _share(values) for name, values in found.items()},
    }


def _share(values: Sequence[float]) -> dict[str, float]:
    low, high = interval(np.array(values), [str(n) for n in range(len(values))])
    return {"mean": float(np.mean(values)), "low": low, "high": high}


def _others(corpus: str, learn: Sequence[redhost.Row], *, validation: bool) -> list[redhost.Row]:
    """Return other training rows, on whose texts the map is fitted."""
    seen = {r.text for r in learn}
    rest = [r for r in CORPORA[corpus].rows("train", validation) if r.text not in seen]
    return rest[:: max(1, len(rest) // (5 * LEARN))][: 5 * LEARN]


def _z(context: AuthoringContext, rows: Sequence[redhost.Row]) -> Tensor:
    h = context.encode([r.text for r in rows])
    return nn.functional.layer_norm(h, h.shape[-1:], eps=context.backbone.eps)


def _penalty(sums: Statistics, z: Tensor, labels: Sequence[str]) -> float:
    """Return the λ with the best leave-one-out accuracy on the old backbone."""
    target = torch.tensor([sums.labels.index(y) for y in labels])

    def right(penalty: float) -> float:
        score = LeastSquares.solve(sums, penalty=penalty).left_out(z, target)
        return float((score.argmax(-1) == target).double().mean())

    return max(PENALTIES, key=right)


def _score(sums: Statistics, z: Tensor, penalty: float) -> Tensor:
    weight, bias = LeastSquares.solve(sums, penalty=penalty).logits(beta=1.0, kappa=1.0)
    return z.double() @ weight.T + bias


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section of the page."""
    yield "## Cards with sums, minilm → minilm-next"
    yield ""
    first = next(iter(found.values()))
    yield from textwrap.wrap(
        "Accuracy of a regression onto the labels of all teams, solved from their sums alone. The "
        f"map is fitted on {first['texts']:,} other texts.",
        98,
    )
    yield ""
    yield f"| system | {' | '.join(found)} |"
    yield "|---" * (len(found) + 1) + "|"
    for name, title in SYSTEMS.items():
        cells = (corpus["systems"][name] for corpus in found.values())
        values = (f"{s['mean']:.3f} ({s['low']:.3f} … {s['high']:.3f})" for s in cells)
        yield f"| {title} | {' | '.join(values)} |"
