"""Write the page of `redhost lab robust` from its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["page"]

TITLES = {
    "arithmetic": "Arithmetic: additions on SmolLM2-135M, five ranges",
    "text": "Text: 20 Newsgroups on all-MiniLM-L6-v2, five teams",
}

SCENES = {
    "weights": "Uneven weights: {rows} rows of every domain; the rare domain has a hundredth of "
    "the weight of another domain in the mean loss",
    "rows": "Uneven rows: {rows} rows of every domain, but a hundredth of that of the rare domain",
}


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.robust/1``."""
    tasks = metrics["tasks"]
    lines = [
        "# Robust gates: the worst mixture of domains",
        "",
        "Written by `redhost lab robust` from `metrics.json`; do not edit. All losses are in nats.",
        "",
    ]
    if "finite" in tasks:
        lines += _finite(tasks["finite"])
    if len(tasks) > ("finite" in tasks):
        lines += _how()
    for name, task in tasks.items():
        if name != "finite":
            lines += [f"## {TITLES[name]}", "", *_setting(task)]
            for scene, one in task["scenes"].items():
                rows = f"{min(task['rows'])}–{max(task['rows'])}"
                lines += [f"### {SCENES[scene].format(rows=rows)}", "", *_systems(one)]
                lines += [*_differences(one), *_mixtures(one)]
            lines += [*_conflicts(task["conflicts"]), *_growth(task["growth"])]
    return "\n".join(lines)


def _finite(finite: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Finite games",
        "",
        "| game | known value | certificate | error | iterations |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {f['game']} | {f['value']:.8f} | {f['lower']:.8f} … {f['upper']:.8f} "
        f"| {f['error']:.0e} | {f['iterations']} |"
        for f in finite["closed_forms"]
    ]
    general, sampled = finite["general"], finite["samples"]
    lines += [
        "",
        f"On {general['games']} random games, the values of the exact solver and of a general "
        f"solver (SLSQP) differ by at most {general['most']:.0e}. {sampled['games']} random games "
        "(K ≤ 8, |X| ≤ 64) were also solved from samples only (stochastic primal-dual): the result "
        f"is above the exact value by {sampled['median']:.4f} in the median and by at most "
        f"{sampled['most']:.4f}; |Z − 1| is at most {sampled['normaliser']:.4f}.",
        "",
        "Seconds until the exact solver reaches a certificate of 1e-8 (median of three games):",
        "",
    ]
    domains = sorted({p["domains"] for p in finite["curve"]})
    lines += [
        f"| alphabet | {' | '.join(f'K = {k}' for k in domains)} |",
        "|---" * (len(domains) + 1) + "|",
    ]
    for symbols in sorted({p["symbols"] for p in finite["curve"]}):
        own = [p for p in finite["curve"] if p["symbols"] == symbols]
        cells = [f"{p['seconds']:.3f}" for p in own]
        lines.append(f"| {symbols:,} | {' | '.join(cells)} |")
    return [*lines, "", "![seconds over K and the alphabet](curve.svg)", ""]


def _how() -> list[str]:
    return [
        "## Uneven traffic",
        "",
        "Five experts are each trained on half of their domain's rows and then frozen. The other "
        "half is the traffic on which all routers are trained. In the traffic one domain, a "
        "different one for every random seed, is a hundred times rarer than each of the others. "
        "The experts are combined as the mixture Σ g_j p_j(y|x).",
        "",
        "- average: a linear gate that minimises the mean loss −log Σ g_j p_j over the traffic.",
        "- balanced: the same, with equal weight for every domain.",
        "- robust: the same, but the weights λ of the domains move to the domain with the largest "
        "regret, its loss minus that of its own expert (`redhost_robust.minimax`). `robust, MLP` "
        "has a hidden layer.",
        "- distilled: a linear or nearest-centroid student of `robust, MLP`, trained on the "
        "teacher's posterior over experts; `game again` then plays the game on the student.",
        "- monolith: one adapter of the experts' form with as many parameters as all experts, "
        "trained on the traffic together with the experts' halves, which are made uneven in the "
        "same way. It minimises the mean loss, or weights all domains equally (`balanced`), or "
        "uses group DRO.",
        "",
        "Every training selects its step on the same gate rows, which are even over domains, by "
        "its own criterion. Regret is the loss on test rows minus that of the domain's own expert; "
        "it can be negative for a monolith. It is linear in the mixture of domains, so the worst "
        "mixture is a single domain. Figures are means over random seeds with 95 % intervals "
        "(Student's t).",
        "",
        "![worst regret of every router](regret.svg)",
        "",
    ]


def _setting(task: Mapping[str, Any]) -> list[str]:
    r = task["recipe"]
    return [
        f"{task['seeds']} seeds; the rare domain was {', '.join(task['rare'])}. Each seed has "
        f"{task['gate_rows']} gate rows and {task['test_rows']:,} test rows. Experts and "
        f"monoliths: {r['epochs']} epochs, batches of {r['batch']}, AdamW at "
        f"{r['learning_rate']:g} with cosine decay, weight decay {r['weight_decay']:g}, dropout "
        f"{r['dropout']:g}.",
        "",
    ]


def _systems(scene: Mapping[str, Any]) -> list[str]:
    lines = [
        "| system | worst regret | 95 % | regret of the rare domain | mean regret | accuracy, "
        "domains equal | accuracy, traffic | worst domain's accuracy | seconds |",
        "|---" * 9 + "|",
    ]
    for name, s in scene["systems"].items():
        worst = s["worst_regret"]
        title = f"**{name}**" if name == "robust" else name
        lines.append(
            f"| {title} | {worst['mean']:.3f} | {worst['low']:.3f} … {worst['high']:.3f} "
            f"| {s['rare_regret']['mean']:.3f} | {s['mean_regret']['mean']:.3f} "
            f"| {s['accuracy']['mean']:.4f} | {s['traffic_accuracy']['mean']:.4f} "
            f"| {s['worst_accuracy']['mean']:.4f} | {s['seconds']:.1f} |"
        )
    return [*lines, ""]


def _differences(scene: Mapping[str, Any]) -> list[str]:
    lines = [
        "| robust against | ratio of worst regrets | difference, nats | accuracy, domains equal, "
        "points | accuracy, traffic, points |",
        "|---" * 5 + "|",
    ]
    for other, p in scene["paired"].items():
        even, traffic = p["even_accuracy"], p["traffic_accuracy"]
        lines.append(
            f"| {other} | {_spread(p['ratio'], 2)} | {_spread(p['regret'], 3)} "
            f"| {_spread(even, 2, scale=100)} | {_spread(traffic, 2, scale=100)} |"
        )
    return [*lines, ""]


def _mixtures(scene: Mapping[str, Any]) -> list[str]:
    mixtures = list(next(iter(scene["mixtures"].values())))
    lines = [
        "Comparison with the monolith: loss of the robust router minus that of the monolith, for "
        "several mixtures of domains (negative: the modular model is better):",
        "",
        f"| against | {' | '.join(mixtures)} |",
        "|---" * (len(mixtures) + 1) + "|",
    ]
    for name, losses in scene["mixtures"].items():
        lines.append(f"| {name} | {' | '.join(_spread(losses[m], 3) for m in mixtures)} |")
    return [
        *lines,
        "",
        "The experts were trained on half of every domain, including the rare one; if rows are "
        "uneven, the monolith was trained on a hundredth of it. Neither is given the domain of a "
        "row. For both, the loss at the worst mixture cannot fall below the capacity of the "
        "channel from domain to data.",
        "",
    ]


def _conflicts(conflicts: Mapping[str, Any]) -> list[str]:
    lines = [
        "### Gradient conflict",
        "",
        "Cosines between the gradients of two domains' losses with respect to the same parameters, "
        "over all pairs of domains: for the monolith (mean loss, uneven weights), and for all "
        "experts together under the robust router.",
        "",
        "| model | when | mean cosine | minimum | share below zero |",
        "|---|---|---|---|---|",
    ]
    for model, times in conflicts.items():
        for when, one in times.items():
            lines.append(
                f"| {model} | {when} | {one['mean']['mean']:+.4f} | {one['least']['mean']:+.4f} "
                f"| {one['negative']['mean']:.2f} |"
            )
    return [*lines, ""]


def _growth(curves: Mapping[str, Any]) -> list[str]:
    lines = [
        "### Rows and size",
        "",
        "Worst regret of the robust router by the number of training rows per domain and its size:",
        "",
        "| rows of each domain | hidden units | on training rows | on test rows |",
        "|---|---|---|---|",
    ]
    for curve in curves.values():
        for p in curve:
            units = p["units"] or "linear"
            lines.append(
                f"| {p['rows']} | {units} | {p['train']['mean']:.3f} | {_spread(p['test'], 3)} |"
            )
    return [*lines, "", "![worst regret over rows and size](growth.svg)", ""]


def _spread(interval: Mapping[str, float], digits: int, *, scale: float = 1.0) -> str:
    mean, low, high = (scale * interval[k] for k in ("mean", "low", "high"))
    return f"{mean:+.{digits}f} ({low:+.{digits}f} … {high:+.{digits}f})"
