"""Write the metrics of `redhost lab red` as a page with figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.red.advantages import advantages, spread
from red_lab.red.claims import claims
from red_lab.red.experts import NAMES
from red_lab.red.measure import SHARES
from red_lab.red.queries import RULE
from red_lab.red.summary import earlier_rule, titled

__all__ = ["page"]


HEADS = {"free": "", "fourier": " with Fourier features of the number as rows (W_c = Φ A)"}

ABLATIONS = {
    "rank": "Rank of every expert; experts are trained separately for each rank",
    "nested": "Nested ranks: experts are trained once, then truncated to a rank",
    "recipe": "Training recipe of experts and router",
    "noise": "A router trained with noise of variance p · abs(z); noisy z has p = 0.5",
}


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.red/2``."""
    lines = [
        *_head(metrics),
        *_systems(metrics),
        *_paired(metrics),
        *claims(metrics),
        *advantages(metrics),
        *_curves(metrics),
        *_ablations(metrics),
        *_cost(metrics),
    ]
    return "\n".join(lines)


def _head(metrics: Mapping[str, Any]) -> list[str]:
    plan, base, budget = metrics["plan"], metrics["plan"]["base"], metrics["plan"]["budget"]
    return [
        f"# RED on {plan['task']}, protocol {plan['protocol']}, backbone {plan['backbone']}",
        "",
        "Written by `redhost lab red` from `metrics.json`; do not edit.",
        "",
        f"{plan['seeds']} seeds, {metrics['rows']} test questions in all{_seen(metrics)}. "
        f"{_rule(metrics)}"
        f"{'Every range is drawn equally often. ' if plan['stratified'] else ''}"
        f"Base stage: the top {base['last_blocks']} blocks and a global head{HEADS[base['head']]}, "
        f"AdamW at {base['learning_rate']:g}, {base['precision']}, {base['epochs']} epochs, "
        f"batches of {base['batch']}, on {base['share']:.0%} of the training questions. Every "
        f"expert of every form: {budget['epochs']} epochs over the drawn questions of its range, "
        f"repeats included, AdamW at {budget['learning_rate']:g}, rank "
        f"{budget['rank'] or 'D/4'}. Unless a row states otherwise, all systems use one router, "
        f"trained on range labels (accuracy {metrics['router_accuracy']:.4f}). Intervals are "
        "95 %, by bootstrap over clusters of questions that are rearrangements of each other. "
        "*Seed* means [seed 001](../../../departures.md), the text that describes RED, except "
        "where random seeds are counted.",
        "",
    ]


def _seen(metrics: Mapping[str, Any]) -> str:
    """Return the shares of the test questions that were seen in training or pretraining."""
    shares = metrics["seen"]
    text = f": {shares['training']:.1%} are also training questions, {shares['rearranged']:.1%} "
    text += "with rearrangements counted"
    if shares["pretraining"] is None:
        return f"{text}; the pretraining data of the language model is not known"
    return f"{text}; {shares['pretraining']:.1%} occur in the language model's pretraining data"


def _rule(metrics: Mapping[str, Any]) -> str:
    """Return a note if the questions were split by an earlier rule, else an empty string."""
    rule = earlier_rule(metrics)
    if rule is None:
        return ""
    why = "../../../lab-notes.md#one-split-for-both-tasks-2026-11-24"
    return (
        f"They were split by rule {rule}, under which mixed questions had separate folds. The run "
        f"was not repeated under rule {RULE}, which additions and mixed questions share "
        f"([why]({why})). "
    )


def _systems(metrics: Mapping[str, Any]) -> list[str]:
    more = ["macro", "worst", "spread", "boundary", "macro F1", "swaps"]
    head = ["system", "accuracy", "95 %", *NAMES, *more]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, s in titled(metrics["systems"]).items():
        a = s["accuracy"]
        cells = [f"{a['mean']:.4f}", f"{a['low']:.4f}–{a['high']:.4f}"]
        cells += [_cell(s["domains"][d]) for d in NAMES]
        cells += [_cell(s[k]) for k in ("macro", "worst")]
        cells.append(_cell(spread(s)))
        cells += [_cell(s[k]) for k in ("boundary", "macro_f1", "swap_consistency")]
        title = f"**{name}**" if name == "RED" else name
        lines.append(f"| {title} | {' | '.join(cells)} |")
    note = (
        "`macro`: mean over ranges. `worst`: accuracy of the worst range, by random seed. "
        "`spread`: best minus worst range, of means over seeds. `boundary`: answers within two of "
        "a border between ranges. `macro F1`: mean over answers that occur. `swaps`: share of the "
        "sets of rearranged questions that get one answer. `monolith`: one adapter with the ranks "
        "of all experts, trained on all ranges. `oracle`: the true range is given "
        "(label-informed)."
    )
    return [*lines, "", note, "", "![accuracy by range](ranges.svg)", ""]


def _paired(metrics: Mapping[str, Any]) -> list[str]:
    lines = ["| paired difference, points | mean | 95 % |", "|---|---|---|"]
    for name, d in metrics["paired"].items():
        low, high = 100 * d["low"], 100 * d["high"]
        lines.append(f"| {name} | {100 * d['mean']:+.2f} | {low:+.2f} … {high:+.2f} |")
    return [*lines, ""]


def _curves(metrics: Mapping[str, Any]) -> list[str]:
    titles = {
        "flipped": "each route is replaced by a random expert with probability q (as in the seed)",
        "worst": "an adversary moves mass q of every α (exact)",
    }
    lines = []
    for kind, title in titles.items():
        heads = " | ".join(f"q = {q:g}" for q in SHARES)
        lines += [f"Accuracy when {title}:", "", f"| system | {heads} |"]
        lines.append("|---" * (len(SHARES) + 1) + "|")
        lines += [
            f"| {name} | {' | '.join(f'{x:.3f}' for x in values)} |"
            for name, values in metrics["curves"][kind].items()
        ]
        lines.append("")
    return [*lines, "![routing errors](noise.svg) ![mean α by range](routing.svg)", ""]


def _ablations(metrics: Mapping[str, Any]) -> list[str]:
    lines = []
    for kind, title in ABLATIONS.items():
        if kind in metrics.get("ablations", {}):
            lines += [f"{title}:", "", *_table(metrics["ablations"][kind]), ""]
    if "ablations" in metrics:
        lines += ["![ranks](ranks.svg)", ""]
    if "shares" in metrics:
        title = "Share of the training questions used for the base (experts and monolith use all):"
        lines += [title, "", *_table(metrics["shares"]), "", "![shares](shares.svg)", ""]
    return lines


def _table(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    systems = list(next(iter(table.values())))
    lines = [f"| | {' | '.join(systems)} |", "|---" * (len(systems) + 1) + "|"]
    for setting, row in table.items():
        cells = [f"{a['mean']:.3f} ({a['low']:.3f}–{a['high']:.3f})" for a in row.values()]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return lines


def _cost(metrics: Mapping[str, Any]) -> list[str]:
    parameters, trunk = metrics["parameters"], metrics["trunk_parameters"]
    added = parameters["residual"] + parameters["router"]
    sizes = ", ".join(f"{d} {x:.2f}" for d, x in metrics["relative_size"].items())
    table = [f"| {n} | {p:,} | {metrics['flops'].get(n, 2 * p):,} |" for n, p in parameters.items()]
    seconds = ", ".join(f"{k} {v:.1f}" for k, v in metrics["seconds"].items())
    return [
        f"Five residual experts and the router add {added:,} parameters to {trunk:,}: "
        f"{added / trunk:.2%}. ‖Δ‖/‖h‖ on test questions: {sizes}. "
        f"{metrics['distinct']:,} distinct questions.",
        "",
        "| part | parameters | multiplications and additions per row, including the head |",
        "|---|---|---|",
        *table,
        "",
        f"Seconds (median over seeds, on a machine shared with other work): {seconds}; "
        f"{sum(metrics['seconds'].values()) / 60:.0f} minutes in all. "
        f"Peak memory {metrics['peak_memory_mb']:.0f} MiB. {_device(metrics)}",
        "",
    ]


def _device(metrics: Mapping[str, Any]) -> str:
    device = metrics["plan"]["device"]
    if device == "cpu":
        return "No GPU was used: mixed precision on a GPU was not measured."
    return f"Trunk and base ran on {device}; the peak memory is that of this device."


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
