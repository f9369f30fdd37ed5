"""Run the study pair by pair, and write its metrics and its page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from redhost_port.porting import SHARE

from red_lab.metrics import Metrics, cached_json, read_metrics, write_results
from red_lab.port import adapters, sums
from red_lab.port.measure import measure_bad, measure_pair
from red_lab.port.subjects import JUDGE, LEARN, PAIRS, TOKENS
from red_lab.port.versions import MOVED

__all__ = ["page", "retained", "run"]

DRAWS = 2000

SYSTEMS = {
    "own": "the expert on its old backbone",
    "ported": "**ported: map fitted on the card's texts and the background card**",
    "ported, texts of the domains": "ported: map fitted on up to 2,000 unlabelled training texts",
    "retrained": "retrained on the new backbone, on all its author's rows",
    "no map": "no map: the expert takes the new backbone's vectors as input unchanged",
    "random weights": "ported, the author's weights shuffled",
    "one answer": "a constant answer",
}
TITLES = {
    "further trained, on subtraction": "the old one, further trained on subtraction",
    "further trained, on what people of a series answer each other": "the old one, further trained "
    "on dialogue of a television series",
    "further trained, on lines of a series": "the old one, further trained on lines of a "
    "television series",
    "another model: other tokens, width and purpose": "a different model, with another tokenizer, "
    "width and purpose",
}
"""Description of a new backbone in the metrics → on the page."""


def run(names: Sequence[str], *, seeds: int, validation: bool, out: Path, work: Path) -> Path:
    """Measure pairs, add their metrics to those of the others, and write the page.

    Args:
        names: Parts of the names of pairs; empty for all, with bad encoders, sums and adapters.
        seeds: Seeds of the authors' training.
        validation: Evaluate on held-out training rows; test files are not opened.
        out: Folder for the results.
        work: Folder for packages, features and finished steps.
    """
    part = "validation" if validation else "test"
    found = {"pairs": {}} | read_metrics(out)
    for name, pair in PAIRS.items():
        if names and not any(n in name for n in names):
            continue
        measured = [
            cached_json(
                work / part / f"{pair.old}-{pair.new}-{pair.corpus}-{seed}.json",
                partial(measure_pair, pair, seed=seed, validation=validation, work=work),
            )
            for seed in range(seeds)
        ]
        found["pairs"][name] = {"title": pair.title, **summarise(measured)}
    parts = {"bad": measure_bad, "sums": sums.measure, "adapters": adapters.measure}
    for name, measure in parts.items():
        if not names or name in names:
            make = partial(measure, work=work, validation=validation)
            found[name] = cached_json(work / part / f"{name}.json", make)
    found |= {"schema": "red-lab.port/1", "validation": validation, "moved": _moved()}
    return write_results(found, out, page=page)


def _moved() -> dict[str, Any]:
    return {name: {"steps": how.steps, "batch": how.batch} for name, how in MOVED.items()}


def summarise(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return accuracies and retained shares over seeds, with intervals over texts."""
    texts = measured[0]["texts"]
    hits = {
        name: np.array([m["hits"][name] for m in measured]).mean(0) for name in measured[0]["hits"]
    }
    experts = [e for m in measured for e in m["experts"]]
    return {
        "rows": len(texts),
        "seeds": len(measured),
        "accuracy": {name: float(values.mean()) for name, values in hits.items()},
        "retained": {
            name: retained(hits[name], hits["retrained"], hits["one answer"])
            for name in hits
            if name not in {"retrained", "one answer"}
        },
        "experts": experts,
        "seconds": float(np.median([s for m in measured for s in m["seconds"]])),
        "most seconds": max(s for m in measured for s in m["seconds"]),
        "encode": measured[0]["encode"],
    }


def retained(system: Any, retrained: Any, nothing: Any) -> dict[str, float]:
    """Return a system's share of the gain of retraining, with a 95 % bootstrap interval over rows.

    Args:
        system: Hits by row, ``(N,)``.
        retrained: Hits of the retrained expert.
        nothing: Hits of a constant answer.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(system), size=(DRAWS, len(system)))
    gains = [(x - nothing)[drawn].mean(1) for x in (system, retrained)]
    low, high = np.quantile(gains[0] / gains[1], [0.025, 0.975])
    share = float((system - nothing).mean() / (retrained - nothing).mean())
    return {"share": share, "low": float(low), "high": float(high)}


def page(found: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.port/1``."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Metrics) -> Iterator[str]:
    yield "# Experts on a new base model"
    yield ""
    yield from _prose(
        "Generated by `redhost lab port` from `metrics.json`; do not edit. Every expert is trained "
        "on the old backbone, as authors train it, and transferred to the new one by `redhost "
        f"port`, which changes none of its weights. Each team has {LEARN} training texts and "
        f"{JUDGE} test texts, truncated to {TOKENS} tokens. Each expert answers only its own "
        "team's rows, so no router affects the figures. The share retained is (accuracy − accuracy "
        "of a constant answer) / (accuracy when retrained − accuracy of a constant answer); its "
        "interval is a bootstrap over rows."
        + (" Evaluated on held-out training rows." if found["validation"] else "")
    )
    for name in PAIRS:
        if name in found["pairs"]:
            yield ""
            yield from _pair(name, found["pairs"][name])
    if "bad" in found:
        yield ""
        yield from _bad(found["bad"])
    for part, section in (("sums", sums.lines), ("adapters", adapters.lines)):
        if part in found:
            yield ""
            yield from section(found[part])
    yield ""
    yield from _limits(found)


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, 98)


def _pair(name: str, pair: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    seeds = f", {pair['seeds']} seeds" if pair["seeds"] > 1 else ""
    title = TITLES.get(pair["title"], pair["title"])
    yield from _prose(f"The new backbone is {title}. {pair['rows']:,} rows{seeds}.")
    yield ""
    yield "| system | accuracy | share of retraining's gain retained |"
    yield "|---|---|---|"
    for system, title in SYSTEMS.items():
        if system in pair["accuracy"]:
            yield f"| {title} | {pair['accuracy'][system]:.3f} | {_retained(pair, system)} |"
    experts = pair["experts"]
    accepted = [sum(e[key] >= SHARE for e in experts) for key in ("share", "wider")]
    yield ""
    yield from _prose(
        "`redhost port` compares a ported expert with the original on the gate rows of its card. "
        f"It accepts {accepted[0]} of {len(experts)} experts with the map from the card's texts, "
        f"and {accepted[1]} of {len(experts)} with the map from the teams' texts."
    )
    yield ""
    spent = " and ".join(f"{1000 * s:.0f} ms on {b}" for b, s in sorted(pair["encode"].items()))
    yield from _prose(
        f"A port takes {pair['seconds']:.1f} CPU seconds at the median and "
        f"{pair['most seconds']:.1f} at most; the first port also encodes the background. Encoding "
        f"one text takes {spent}. The map leaves {_mean(experts, 'unexplained'):.0%} of the "
        "variance of the old vectors unexplained."
    )


def _retained(pair: Mapping[str, Any], system: str) -> str:
    if system not in pair["retained"]:
        return ""
    k = pair["retained"][system]
    return f"{k['share']:.1%} ({k['low']:.1%} … {k['high']:.1%})"


def _mean(experts: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([e[key] for e in experts]))


def _bad(found: Mapping[str, Any]) -> Iterator[str]:
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for name, row in found.items():
        kinds.setdefault(name.rpartition(", ")[0] or name, []).append(row)
    yield "## Degraded encoders"
    yield ""
    yield "| the new backbone returns | ports | refused | largest share retained |"
    yield "|---|---|---|---|"
    for kind, rows in sorted(kinds.items(), key=lambda kind: _place(kind[0])):
        ports, refused = (sum(r[k] for r in rows) for k in ("ports", "refused"))
        shown = kind.replace("of its directions", "directions of the old vector")
        yield f"| {shown} | {ports} | {refused} | {max(r['largest'] for r in rows):.0%} |"


def _place(kind: str) -> tuple[int, str]:
    """Return the sort key of a kind: those with a number by it, after the others."""
    first = kind.partition(" ")[0]
    return (int(first), "") if first.isdigit() else (0, kind)


def _limits(found: Mapping[str, Any]) -> Iterator[str]:
    steps = ", ".join(
        f"{name} {how['steps']} of {how['batch']} texts" for name, how in found["moved"].items()
    )
    yield "## Limits of this study"
    yield ""
    yield from _prose(
        f"We made the new versions ourselves, with a few hundred further steps ({steps}); a "
        "maintainer would train longer. Only one sentence encoder was available from a package; "
        "the other model is a language model whose hidden states are averaged. The tiny model was "
        "trained on sums like those of the evaluation, with other answers. Experts are evaluated "
        "alone; a composition of ported experts is checked by its own gates."
    )
