"""Write the metrics of `redhost lab merging` as a page and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from red_lab.merging.adapters import EPOCHS
from red_lab.merging.bound import texts_needed
from red_lab.ranges import EXPERT

__all__ = ["draw", "page"]

FOLDS = ("ranges", "newswire")

EXPERTS = {
    "routed": "**five experts, routed**",
    "oracle": "five experts, each row's own (label-informed)",
    "uniform": "five experts, equal weights",
    "no router": "five experts, no router: all Δ summed, or all labels' logits in one softmax",
    "best_single": "the best single expert (selected on the test rows)",
    "averaged": "the experts' parameters averaged",
    "fold 0": "**`redhost merge`**, plain steps",
    "fold 0.05": "`redhost merge --sharpness 0.05`",
    "fold 0.2": "`redhost merge --sharpness 0.2`",
    "fold 1": "`redhost merge --sharpness 1`",
    "fold of shuffled": "`redhost merge` of experts whose weights are shuffled",
    "joint": "one expert of the same rank, trained on the pooled rows of all teams",
    "joint, all ranks": "one expert of five times the rank, trained on the pooled rows",
    "nothing": "no expert",
}
ADAPTERS = {
    "routed": "**five adapters under `redhost recompose`**",
    "oracle": "five adapters, each row's own (label-informed)",
    "uniform": "five adapters, residuals Δ at equal weights (five passes)",
    "sum": "five adapters, all residuals Δ summed (five passes)",
    "best_single": "the best single adapter (selected on the test rows)",
    "updates averaged": "the updates B A averaged, by PEFT",
    "parameters averaged": "the parameters averaged, B and A separately, by PEFT",
    "updates summed": "the updates B A summed, by PEFT",
    "TIES merge": "TIES merge, by PEFT",
    "joint": "one adapter of the same rank, trained on the pooled rows of all ranges",
    "joint, all ranks": "one adapter of five times the rank, trained on the pooled rows",
    "shuffled joint": "an adapter whose weights are shuffled",
}


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.merging/1``."""
    lines = [
        "# Separately trained experts merged into one",
        "",
        "Written by `redhost lab merging` from `metrics.json`; do not edit.",
        "",
        "Five teams train experts separately. The experts can be combined in three ways: by a "
        "router; by `redhost merge`, which distils the composition into one expert (the *fold*), "
        "using the training texts without labels; or by averaging their parameters. The tables "
        "give accuracy on held-out rows, means over random seeds, with 95 % intervals by bootstrap "
        "over groups of related rows. Differences to the routed composition are paired, in points. "
        "The last column counts the parameters above the backbone, including the router if there "
        "is one.",
        "",
    ]
    for name in (s for s in FOLDS if s in metrics):
        lines += _section(metrics[name], EXPERTS)
    if any(s in metrics for s in FOLDS):
        lines += [*_flatness(metrics)]
    if "adapters" in metrics:
        lines += _section(metrics["adapters"], ADAPTERS, title=_adapters_title(metrics))
    return "\n".join(lines)


def _adapters_title(metrics: Mapping[str, Any]) -> str:
    red = metrics.get("ranges", {}).get("accuracy", {}).get("routed")
    beside = "" if red is None else f" RED's five experts reach {_cell(red)} on the same rows."
    return (
        "LoRA adapters on the same sums: one per range, rank 8, in the upper half of the tiny "
        f"backbone's blocks, trained for {EPOCHS} epochs, answering through its frozen "
        f"classifier.{beside} RED's experts were trained for {EXPERT.epochs} epochs on fixed "
        "features; adapters still improved with every larger number of epochs that was tried "
        "([lab notes](../../lab-notes.md))."
    )


def _section(
    found: Mapping[str, Any], titles: Mapping[str, str], *, title: str | None = None
) -> list[str]:
    head = found["title"][0].upper() + found["title"][1:] if title is None else "LoRA adapters"
    lines = [
        f"## {head}",
        "",
        *([] if title is None else [title, ""]),
        f"{found['rows']:,} rows, {found['seeds']} seeds, router `{found['router']}`.",
        "",
        "| system | accuracy | 95 % | minus routed, points | parameters |",
        "|---|---|---|---|---|",
    ]
    for name, shown in titles.items():
        a, less = found["accuracy"][name], found["less routed"][name]
        difference = f"{100 * less['mean']:+.1f} ({_points(less)})" if name != "routed" else ""
        lines.append(
            f"| {shown} | {a['mean']:.4f} | {a['low']:.4f}–{a['high']:.4f} | {difference} "
            f"| {found['numbers'][name]:,} |"
        )
    return [*lines, ""]


def _points(cell: Mapping[str, float]) -> str:
    return f"{100 * cell['low']:+.1f} … {100 * cell['high']:+.1f}"


def _cell(cell: Mapping[str, float]) -> str:
    return f"{cell['mean']:.4f} ({cell['low']:.4f}–{cell['high']:.4f})"


def _flatness(metrics: Mapping[str, Any]) -> list[str]:
    lines = [
        "## How flat a fold lies",
        "",
        "Mean KL(composition ‖ fold) on the test texts, in nats, after a random Gaussian step of "
        "every tensor of the fold. The step length is given as a share of the tensor's norm; "
        "figures are means over eight directions and the random seeds. The composition is the "
        "teacher, so step 0 shows the error of the distillation itself. *Sharpness* is the radius "
        "ρ of sharpness-aware minimisation; 0 means plain steps.",
        "",
        "![KL by the length of a random step: one line for each sharpness](flatness.svg)",
        "",
    ]
    for name in (s for s in FOLDS if s in metrics):
        flat = metrics[name]["flat"]
        steps = sorted(next(iter(flat.values())), key=float)
        lines += [
            f"| {name}, sharpness | {' | '.join(f'step {s}' for s in steps)} |",
            "|---" * (len(steps) + 1) + "|",
            *(
                f"| {rho} | {' | '.join(f'{flat[rho][s]:.4f}' for s in steps)} |"
                for rho in sorted(flat, key=float)
            ),
            "",
        ]
    return [*lines, *_bound(metrics)]


def _bound(metrics: Mapping[str, Any]) -> list[str]:
    """Return the number of texts from which a flatness bound is informative for the folds."""
    parts = []
    for name in (s for s in FOLDS if s in metrics):
        step = max(map(float, metrics[name]["flat"]["0"]))
        numbers = metrics[name]["numbers"]["fold 0"]
        needed = texts_needed(numbers=numbers, step=step)
        parts.append(f"{needed:,} texts for the {numbers:,} parameters of the fold of {name}")
    if not parts:
        return []
    return [
        "The generalisation bound behind sharpness-aware minimisation (PAC-Bayes, with a prior "
        "centred at zero that has the variance of the step) is informative only if it is below 1. "
        f"At a step of {step:g} this takes at least {', and '.join(parts)}. The teams have fewer "
        "texts, so flatness is measured here and no bound is claimed.",
        "",
    ]


def draw(metrics: Mapping[str, Any], folder: Path) -> None:
    """Write flatness.svg; the same metrics give the same bytes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [s for s in FOLDS if s in metrics]
    if not shown:
        return
    with mpl.rc_context({"svg.hashsalt": "merging", "figure.figsize": (8, 3.2), "font.size": 9}):
        figure, axes = plt.subplots(1, len(shown), layout="constrained", squeeze=False)
        for place, name in zip(axes[0], shown, strict=True):
            for rho, steps in sorted(metrics[name]["flat"].items(), key=lambda x: float(x[0])):
                points = sorted((float(s), kl) for s, kl in steps.items())
                place.plot(*zip(*points, strict=True), marker=".", label=f"sharpness {rho}")
            place.set_xlabel("random step, share of each tensor's norm")
            place.set_title(name)
        axes[0][0].set_ylabel("KL to the composition, nats")
        axes[0][0].legend(fontsize=7)
        figure.savefig(folder / "flatness.svg", metadata={"Date": None})
        plt.close(figure)
