"""Write the page of `redhost lab matched` from its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.matched.train import EVIDENCE, RED

__all__ = ["page"]

TITLES = {
    "arithmetic": "Arithmetic: additions on SmolLM2-135M, protocol `seed`",
    "text": "Text: 20 Newsgroups on all-MiniLM-L6-v2",
}

NOTES = {
    "arithmetic": "The five domains are five ranges of answers. RED's experts write hidden states "
    "and use the base's frozen classifier, which the other systems do not use. As in seed 001, "
    "nearly all test questions are also training questions: this measures capacity, not "
    "generalisation.",
    "text": "The five domains are five teams with disjoint labels. RED's experts have labels of "
    "their own and are combined as a mixture. All rows except the validation rows are training "
    "rows; the test rows are later posts.",
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
        "This page compares joint training with the modular way at the same number of trained "
        "parameters. All systems take frozen features z = LayerNorm(h) as input, with one training "
        "recipe per data set:",
        "",
        "- dense head: one MLP, D → W → C.",
        "- soft MoE: five MLP heads and a linear gate, trained jointly on −log Σ α_i p_i(y).",
        "- sparse top-2 MoE: the same, but each row uses only the two heads with the largest "
        "weights. During training, noise of standard deviation 1/E is added to the gate's logits, "
        "and a load balancing loss with coefficient .01 is used "
        "(`redhost_mechanisms.SparseMixture`).",
        f"- {RED}: five residual experts of rank D/4, each trained alone on its own domain and "
        "then frozen; a linear router trained to predict the rows' domains.",
        f"- {EVIDENCE}: the same experts under the host's default router, solved in closed form "
        "from sums over training rows and the experts' output norms on validation rows.",
        "",
        f"Widths are chosen so that all systems train as many parameters as {RED}. Only {RED} is "
        "given the domains; the mixtures learn their own division, and the dense head has none. "
        "Every system passes over its rows equally often, so an expert that is trained alone takes "
        "only its domain's share of the steps. Intervals are 95 %, by bootstrap over groups of "
        "rows that count as one observation; differences are paired.",
        "",
    ]


def _setting(name: str, task: Mapping[str, Any]) -> list[str]:
    r, shape = task["recipe"], task["shape"]
    rows, distinct = _alike(shape["train"]), _alike(shape["distinct"])
    return [
        f"{NOTES[name]} D = {shape['width'][0]}, C = {shape['classes'][0]}, "
        f"R = {shape['rank'][0]}; {rows} training rows, {distinct} of them distinct; "
        f"{task['seeds']} seeds, {task['rows']:,} test rows in all, {task['clusters']:,} "
        f"observations. Recipe: {r['epochs']} epochs, batches of {r['batch']}, AdamW at "
        f"{r['learning_rate']:g} with cosine decay, weight decay {r['weight_decay']:g}, dropout of "
        f"z {r['dropout']:g}; the last epoch is used.",
        "",
    ]


def _systems(task: Mapping[str, Any]) -> list[str]:
    lines = [
        "| system | accuracy | 95 % | worst domain | on training rows | trained parameters "
        "| multiply-adds per row | CPU seconds | usage entropy | top Hessian eigenvalue |",
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
        f"The row's own domain has the largest weight on {routed['gate']:.1%} of the test rows "
        f"under {RED}'s linear router, and on {routed['listening']:.1%} under the evidence router, "
        f"which stores {task['stored']:,} numbers, none of them trained by gradient. Usage entropy "
        "is the entropy of the mean weights, divided by log E. Multiply-adds count one for each "
        "entry of each matrix that a row passes through above the backbone. Seconds are medians "
        "over random seeds, on one thread.",
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
        "The eigenvalue is the largest of the Hessian of the mean −log p(y) over 512 fixed "
        "training rows with respect to all trained parameters, without dropout, noise and "
        "penalties. It is computed by power iteration in float64; the table gives the median over "
        f"random seeds, with the minimum and the maximum. {RED}'s experts are independent blocks, "
        "so its value is the largest of the experts' own values, each on 512 rows of its own "
        "domain. For the composition as one system, with −log p(y) on the same 512 rows and the "
        "parameters of experts and router, the value is "
        f"{_spread(task['composed'])}. The largest relative residual ‖Hv − λv‖/|λ| was "
        f"{residual:.1e}, after at most {products} products. The eigenvalue is a diagnostic of "
        "each system's own parametrisation, not a measure across systems.",
        "",
    ]


def _choice(task: Mapping[str, Any]) -> list[str]:
    if task["choice"] is None:
        return []
    valid, rows = task["choice"]["valid"], task["choice"]["rows"]
    systems, most = list(next(iter(valid.values()))), max(map(int, valid))
    return [
        "The number of epochs was chosen by validation accuracy, as the mean over systems on "
        f"{rows} rows of random seed 0; {task['choice']['epochs']} was best"
        + (", the largest number tried:" if task["choice"]["epochs"] == most else ":"),
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
    """Return one count if all seeds have the same, else the minimum and the maximum."""
    least, largest = min(counts), max(counts)
    return f"{least:,}" if least == largest else f"{least:,}–{largest:,}"
