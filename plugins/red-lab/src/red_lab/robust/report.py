"""The page of `redhost lab robust`: a function of its metrics and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["page"]

TITLES = {
    "arithmetic": "Arithmetic: additions on SmolLM2-135M, five ranges",
    "text": "Text: 20 Newsgroups on all-MiniLM-L6-v2, five teams",
}

SCENES = {
    "weights": "Uneven weights: as many rows of every domain, {rows} each; the mean loss counts "
    "the rare domain a hundredth of another",
    "rows": "Uneven rows: {rows} rows of every domain, but a hundredth of that of the rare one",
}


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.robust/1``."""
    tasks = metrics["tasks"]
    lines = [
        "# Robust gates: the worst mixture of domains",
        "",
        "Written by `redhost lab robust` from `metrics.json`; do not edit. All losses in nats.",
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
        f"{general['games']} random games, beside a general solver (SLSQP): at most "
        f"{general['most']:.0e} apart. {sampled['games']} random games (K ≤ 8, |X| ≤ 64) by "
        f"samples alone (stochastic primal-dual): {sampled['median']:.4f} above the exact value "
        f"in the median, {sampled['most']:.4f} at most; |Z − 1| at most "
        f"{sampled['normaliser']:.4f}.",
        "",
        "Seconds of the exact solver to a certificate of 1e-8 (median of three games):",
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
        "Five frozen experts, each trained on half of its domain's rows. One domain, another one "
        "for every seed, is a hundred times rarer than each other one in the traffic of the other "
        "half, from which every router learns. They answer with the mixture Σ g_j p_j(y|x).",
        "",
        "- average: a linear gate, least mean loss −log Σ g_j p_j over the traffic.",
        "- balanced: the same with every domain alike.",
        "- robust: the same, but λ moves to the domain whose regret, loss above that of its own "
        "expert, is largest (`redhost_robust.minimax`); with a hidden layer as `robust, MLP`.",
        "- distilled: a linear or a nearest-centroid student of `robust, MLP`, taught by its "
        "posterior over experts; then the game again on the student.",
        "- monolith: one adapter of the experts' form and with as many parameters as all of them, "
        "on the traffic and the experts' halves together, uneven alike: on the mean loss, with "
        "every domain alike, or by group DRO.",
        "",
        "All pick their step on the same even gate rows, by their own yardstick. Regret is the "
        "loss on test rows above that of the domain's own expert; a monolith may be below it. "
        "It is linear in the mixture, so the worst mixture is a single domain. Means and 95 % "
        "intervals (Student's t) over seeds.",
        "",
        "![worst regret of every router](regret.svg)",
        "",
    ]


def _setting(task: Mapping[str, Any]) -> list[str]:
    r = task["recipe"]
    return [
        f"{task['seeds']} seeds; the rare domain was {', '.join(task['rare'])}. "
        f"{task['gate_rows']} gate rows, {task['test_rows']:,} test rows in a seed. Experts and "
        f"monoliths: {r['epochs']} epochs, batches of {r['batch']}, AdamW {r['learning_rate']:g} "
        f"along a cosine, weight decay {r['weight_decay']:g}, dropout {r['dropout']:g}.",
        "",
    ]


def _systems(scene: Mapping[str, Any]) -> list[str]:
    lines = [
        "| system | worst regret | 95 % | of the rare domain | mean regret | accuracy, domains "
        "alike | accuracy, traffic | worst domain's accuracy | seconds |",
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
        "| robust against | ratio of worst regrets | difference, nats | accuracy, domains alike, "
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
        "Does the modular model beat the monolith: loss of the robust router less that of the "
        "monolith, under one mixture of domains after the other (below zero the modular model "
        "wins):",
        "",
        f"| against | {' | '.join(mixtures)} |",
        "|---" * (len(mixtures) + 1) + "|",
    ]
    for name, losses in scene["mixtures"].items():
        lines.append(f"| {name} | {' | '.join(_spread(losses[m], 3) for m in mixtures)} |")
    return [
        *lines,
        "",
        "The experts saw half of every domain, the rare one's too: where rows are uneven the "
        "monolith saw a hundredth of it. Neither gets the domain of a row; a floor of the worst "
        "mixture, the capacity of the channel from domain to data, holds for both.",
        "",
    ]


def _conflicts(conflicts: Mapping[str, Any]) -> list[str]:
    lines = [
        "### Gradient conflict",
        "",
        "Cosines between the gradients of two domains' losses on the same parameters, over all "
        "pairs: of the monolith (mean loss, uneven weights), and of all experts together under the "
        "robust router.",
        "",
        "| model | when | mean cosine | least | share below zero |",
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
        "Worst regret of the robust router trained on so many rows of every domain:",
        "",
        "| rows of each domain | hidden units | on these rows | on test rows |",
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
