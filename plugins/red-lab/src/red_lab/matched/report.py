"""The page of `redhost lab matched`: a function of its metrics and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.matched.train import EVIDENCE, RED

__all__ = ["page"]

TITLES = {
    "arithmetic": "Arithmetic: additions on SmolLM2-135M, the seed's protocol",
    "text": "Text: 20 Newsgroups on all-MiniLM-L6-v2",
}

NOTES = {
    "arithmetic": "Five domains are five ranges of answers; RED's experts write hidden states "
    "through the base's frozen classifier, which the others do not use. Test questions were nearly "
    "all trained on, as the seed has it: this is capacity, not generalisation.",
    "text": "Five domains are five teams, whose labels nobody shares; RED's experts bring labels "
    "of their own and are mixed. All rows but the validation rows are learnt from; tested on later "
    "posts.",
}


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.matched/1``."""
    lines = [*_head(), "![accuracy and top eigenvalue](systems.svg)", ""]
    for name, task in metrics["tasks"].items():
        lines += [f"## {TITLES[name]}", "", *_setting(name, task), *_systems(task)]
        lines += [*_paired(task), *_domains(task), *_curvature(task), *_choice(task)]
    return "\n".join(lines)


def _head() -> list[str]:
    return [
        "# The same number of parameters, spent in four ways",
        "",
        "Written by `redhost lab matched` from `metrics.json`; do not edit.",
        "",
        "On frozen features z = LayerNorm(h), with one recipe for all systems of a data set:",
        "",
        "- dense head: one MLP, D → W → C.",
        "- soft MoE: five MLP heads and a linear gate, trained together by −log Σ α_i p_i(y).",
        "- sparse top-2 MoE: the same, but a row sees the two heads with the largest weights; "
        "noise of standard deviation 1/E on the gate's logits while it is trained, load balancing "
        "loss with coefficient .01 (`redhost_mechanisms.SparseMixture`).",
        f"- {RED}: five residual experts of rank D/4, each trained alone on its own domain and "
        "then frozen; a linear router trained on the rows' domains.",
        f"- {EVIDENCE}: the same experts under the host's default router, solved in closed form "
        "from sums over training rows and the experts' output norms on validation rows.",
        "",
        f"Widths are chosen so that all train as many parameters as {RED}. Only {RED} gets the "
        "domains; the others find their own division of labour or have none. Everybody passes over "
        "its rows equally often, so an expert trained apart takes only its domain's share of the "
        "steps. Intervals are 95 %, by bootstrap over what counts as one observation; differences "
        "are paired.",
        "",
    ]


def _setting(name: str, task: Mapping[str, Any]) -> list[str]:
    r, shape = task["recipe"], task["shape"]
    rows, distinct = _alike(shape["train"]), _alike(shape["distinct"])
    return [
        f"{NOTES[name]} D = {shape['width'][0]}, C = {shape['classes'][0]}, "
        f"R = {shape['rank'][0]}; {rows} training rows, {distinct} of them distinct; "
        f"{task['seeds']} seeds, {task['rows']:,} test rows in all, {task['clusters']:,} "
        f"observations. Recipe: {r['epochs']} epochs, batches of {r['batch']}, AdamW "
        f"{r['learning_rate']:g} along a cosine, weight decay {r['weight_decay']:g}, dropout of z "
        f"{r['dropout']:g}; the last epoch is taken.",
        "",
    ]


def _systems(task: Mapping[str, Any]) -> list[str]:
    lines = [
        "| system | accuracy | 95 % | worst domain | on training rows | trained parameters "
        "| multiply-adds a row | CPU seconds | usage entropy | top Hessian eigenvalue |",
        "|---" * 10 + "|",
    ]
    for name, s in task["systems"].items():
        a, worst = s["accuracy"], min(s["domains"], key=lambda d: s["domains"][d])
        entropy = "" if s["usage_entropy"] is None else f"{s['usage_entropy']:.3f}"
        title = f"**{name}**" if name == RED else name
        lines.append(
            f"| {title} | {a['mean']:.4f} | {a['low']:.4f}–{a['high']:.4f} "
            f"| {s['domains'][worst]:.4f} ({worst}) | {s['train']:.4f} | {s['parameters']:,} "
            f"| {s['multiply_adds']:,} | {s['seconds']:.0f} | {entropy} "
            f"| {_spread(s['eigenvalue'])} |"
        )
    routed = task["routed"]
    return [
        *lines,
        "",
        f"The largest weight is that of the row's own domain on {routed['gate']:.1%} of the test "
        f"rows under {RED}'s linear router, {routed['listening']:.1%} under the evidence router, "
        f"which keeps {task['stored']:,} numbers, none of them trained by gradient. Usage entropy "
        "is that of the mean weights, in units of log E. Multiply-adds are one for each entry of "
        "each matrix that a row meets above the backbone. Seconds are medians over seeds, one "
        "thread.",
        "",
    ]


def _paired(task: Mapping[str, Any]) -> list[str]:
    lines = ["| paired difference, points | mean | 95 % |", "|---|---|---|"]
    for name, d in task["paired"].items():
        low, high = 100 * d["low"], 100 * d["high"]
        lines.append(f"| {name} | {100 * d['mean']:+.2f} | {low:+.2f} … {high:+.2f} |")
    return [*lines, ""]


def _domains(task: Mapping[str, Any]) -> list[str]:
    names = list(next(iter(task["systems"].values()))["domains"])
    lines = [f"| accuracy by domain | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, s in task["systems"].items():
        cells = [f"{s['domains'][d]:.4f}" for d in names]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _curvature(task: Mapping[str, Any]) -> list[str]:
    kinds = [*(s["eigenvalue"] for s in task["systems"].values()), task["composed"]]
    residual, products = (max(k[n] for k in kinds) for n in ("residual", "products"))
    return [
        "The eigenvalue is that of the mean −log p(y) of 512 fixed training rows by all trained "
        "parameters, without dropout, noise and penalties: power iteration in float64, median over "
        f"seeds with the least and the largest. {RED}'s experts are independent blocks, so its "
        "value is the largest of the experts' own, each on 512 rows of its own domain. Taken "
        f"as one system, −log p(y) of the composition on the same 512 rows by experts and router, "
        f"it is {_spread(task['composed'])}. The largest relative residual ‖Hv − λv‖/|λ| was "
        f"{residual:.1e}, after {products} products at most. A diagnostic of each system's own "
        "parametrisation, not a measure across systems.",
        "",
    ]


def _choice(task: Mapping[str, Any]) -> list[str]:
    if task["choice"] is None:
        return []
    valid, rows = task["choice"]["valid"], task["choice"]["rows"]
    systems, most = list(next(iter(valid.values()))), max(map(int, valid))
    return [
        f"Epochs were chosen by the mean over systems of the accuracy on {rows} validation rows, "
        f"seed 0; {task['choice']['epochs']} was best"
        + (", the most that were tried:" if task["choice"]["epochs"] == most else ":"),
        "",
        f"| epochs | {' | '.join(systems)} | mean |",
        "|---" * (len(systems) + 2) + "|",
        *(
            f"| {epochs} | {' | '.join(f'{row[s]:.4f}' for s in systems)} "
            f"| {sum(row.values()) / len(row):.4f} |"
            for epochs, row in valid.items()
        ),
        "",
    ]


def _spread(values: Mapping[str, float]) -> str:
    return f"{values['median']:.3g} ({values['min']:.3g}–{values['max']:.3g})"


def _alike(counts: list[int]) -> str:
    """Return one count where all seeds have the same, else the least and the largest."""
    least, largest = min(counts), max(counts)
    return f"{least:,}" if least == largest else f"{least:,}–{largest:,}"
