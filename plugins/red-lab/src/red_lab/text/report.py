"""The page of the study, written from its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from red_lab.metrics import Metrics
from red_lab.newsgroups import DATA
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
    "random experts": "the default router, experts whose weights are shuffled",
    "uniform": "experts, uniform weights",
    "best_single": "best single expert (chosen on these very rows)",
}


def page(every: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.text/1``, by corpus and encoder."""
    lines = [
        "# Teams with labels of their own on real texts",
        "",
        "Written by `redhost lab text` from the metrics beside it; do not edit.",
        "",
        f"Texts as `{DATA}` carries them; the frozen encoder that a heading names, as a package "
        "carries it (`red_lab.text.encoders`), with the features that `redhost new-backbone` "
        "declares by default. Every team trains its expert alone, as `redhost "
        "train-expert` does, and no label is in two of them. "
        "Intervals are 95 %, by bootstrap over texts; differences are paired, in points, to the "
        "best model that was trained on everybody's rows and the same features (cards' rows as "
        "well, which experts do not see). Settings were chosen on training rows alone.",
        "",
    ]
    names = [f"{corpus} {encoder}" for encoder in ENCODERS for corpus in CORPORA]
    for metrics in (every[name] for name in names if name in every):
        lines += _head(metrics)
        if "systems" in metrics:
            lines += [*_extent(metrics), *_systems(metrics), *_beside(metrics)]
        lines += [*_curve(metrics), *_probabilities(metrics), *_noise(metrics)]
        lines += [*adapter_lines(metrics), *_joins(metrics)]
    return "\n".join(lines).rstrip() + "\n"


def _head(metrics: Mapping[str, Any]) -> list[str]:
    corpus, encoder = CORPORA[metrics["corpus"]], ENCODERS[metrics["encoder"]]
    return [f"## {corpus.title}, {encoder.title}", ""]


def _extent(metrics: Mapping[str, Any]) -> list[str]:
    corpus, tokens = CORPORA[metrics["corpus"]], ENCODERS[metrics["encoder"]].tokens
    rows = ", ".join(f"{t} {n}" for t, n in metrics["train_rows"].items())
    where = "training rows set aside" if metrics["validation"] else corpus.tests_are
    forms = ", ".join(f"{n} {form}" for form, n in metrics["forms"].items())
    return [
        f"{metrics['labels']} labels, texts cut at {tokens} tokens. Rows of each team: {rows}. "
        f"Judged on {where}: {metrics['rows']}, {metrics['seeds']} seeds. Chosen by "
        f"`recompose`: router `{metrics['router']}`; by `train-expert`: {forms}. The heaviest "
        f"column is the row's own in {metrics['domain']:.1%}.",
        "",
    ]


def _systems(metrics: Mapping[str, Any]) -> list[str]:
    lines = ["| system | accuracy | 95 % | difference |", "|---|---|---|---|"]
    for name, title in TITLES.items():
        s = metrics["systems"][name]
        d = {k: 100 * v for k, v in s["difference"].items()}
        difference = f"{d['mean']:+.1f} ({d['low']:+.1f} … {d['high']:+.1f})"
        lines.append(
            f"| {title} | {s['accuracy']:.4f} | {s['low']:.4f}–{s['high']:.4f} "
            f"| {'the best' if name == metrics['best'] else difference} |"
        )
    return [*lines, ""]


def _beside(metrics: Mapping[str, Any]) -> list[str]:
    """Write what is declined, and label sets."""
    lines = [
        "`recompose --decline 5%`, calibrated on gate rows:",
        "",
        "| texts of another source | how many | declined | own texts declined | AUROC |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {s} | {x['rows']:.0f} | {x['declined']:.1%} | {x['own']:.1%} | {x['auroc']:.3f} |"
        for s, x in metrics["strangers"].items()
    ]
    sets = metrics["sets"]
    return [
        *lines,
        "",
        f"Label sets for {SETS:.0%} hold the right label in {sets['covered']:.1%}, with "
        f"{sets['labels']:.2f} labels on average. Both are promised of texts that come from where "
        "the training rows come from, which later ones need not do.",
        "",
    ]


def _curve(metrics: Mapping[str, Any]) -> list[str]:
    if not metrics.get("curve"):
        return []
    lines = [
        "Accuracy by the rows that every team has:",
        "",
        "| rows | default | oracle | no expert: ridge | one linear head on everybody's rows |",
        "|---|---|---|---|---|",
    ]
    for point in metrics["curve"]:
        a = point["accuracy"]
        names = ("routed", "oracle", "no expert, ridge", "ridge")
        cells = " | ".join(f"{a[name]:.3f}" for name in names)
        lines.append(f"| {point['rows'] or 'all'}{_missing(point)} | {cells} |")
    return [*lines, ""]


def _missing(point: Mapping[str, Any]) -> str:
    count = len(point["left_out"])
    return f" ({count} experts refused)" if count else ""


def _probabilities(metrics: Mapping[str, Any]) -> list[str]:
    if "probabilities" not in metrics:
        return []
    where = {
        "probabilities": "training rows set aside"
        if metrics["validation"]
        else CORPORA[metrics["corpus"]].tests_are,
        "probabilities_aside": "a fifth of the training rows, which then nobody learns from",
    }
    lines = [
        "Expected calibration error (fifteen bins of equal width; solved linear heads) of "
        "composed answers, and of every expert's own answers to its own rows, as `--each` gives "
        "them; in brackets mean confidence and accuracy:",
        "",
        "| rows | composed | each |",
        "|---|---|---|",
    ]
    for part, what in where.items():
        if part in metrics:
            cells = (
                f"{x['ece']:.3f} ({x['confidence']:.3f}, {x['accuracy']:.3f})"
                for x in (metrics[part]["composed"], metrics[part]["each"])
            )
            lines.append(f"| {what} | {' | '.join(cells)} |")
    return [*lines, ""]


def _noise(metrics: Mapping[str, Any]) -> list[str]:
    if not metrics.get("noise"):
        return []
    lines = [
        "Cards of sums alone, with noise: counts and sums are (ε, δ)-differentially private "
        f"with δ = {metrics['noise'][0]['delta']:g}, experts are as they were. No row is shown, "
        "and no gate judges:",
        "",
        "| ε | default | own domain has most weight | no expert: ridge |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_epsilon(x['epsilon'])} | {x['routed']:.3f} | {x['domain']:.3f} | {x['ridge']:.3f} |"
        for x in metrics["noise"]
    ]
    return [*lines, ""]


def _epsilon(epsilon: float | None) -> str:
    return "exact sums" if epsilon is None else f"{epsilon:g}"


def _joins(metrics: Mapping[str, Any]) -> list[str]:
    if not metrics.get("joins"):
        return []
    joins = metrics["joins"]
    hijacks = [x for x in joins if x["kind"] != "honest"]
    honest = [x for x in joins if x["kind"] == "honest"]
    lines = [
        "One team joins the others, as it is and as what it is not; deals of the labels to teams: "
        f"{len({x['deal'] for x in joins})}. Experts are solved linear heads under `ridge`. Of "
        f"{len(honest)} honest newcomers {sum(x['accepted'] for x in honest)} are let in, of "
        f"{len(hijacks)} hijacks {sum(x['accepted'] for x in hijacks)}. What the worst team loses "
        "on test rows, in points, to those let in and, had they been, to those refused (no figure: "
        "the card was refused by itself):",
        "",
        "| a newcomer whose card shows | joins | let in | lost to them, median (most) | refused "
        "ones' |",
        "|---|---|---|---|---|",
    ]
    for kind, some in by_kind(joins):
        what = "rows and sums of its own" if kind == "honest" else kind
        in_ = [x for x in some if x["accepted"]]
        out = [x for x in some if not x["accepted"]]
        lines.append(f"| {what} | {len(some)} | {len(in_)} | {_falls(in_)} | {_falls(out)} |")
    return [*lines, ""]


def _falls(joins: Sequence[Mapping[str, Any]]) -> str:
    falls = [100 * x["fall"] for x in joins if x["fall"] is not None]
    return f"{float(np.median(falls)):.1f} ({max(falls):.1f})" if falls else ""
