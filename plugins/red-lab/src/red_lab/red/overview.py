"""Write the overview of all runs of `redhost lab red`: overview.json and a page, one line a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from red_lab.metrics import write_json
from red_lab.red.summary import earlier_rule, key_of

__all__ = ["overview", "overview_table", "write_overview"]

SYSTEMS = ("global head", "MoE, linear", "MoE, mlp", "MoE, residual", "RED", "monolith")


def write_overview(folder: Path) -> None:
    """Write overview.json and README.md for all runs under a folder."""
    found = overview(folder)
    write_json(found, folder / "overview.json", sort_keys=False)
    lines = [
        "# RED on arithmetic: every run",
        "",
        "Written by `redhost lab red` from `overview.json`; do not edit.",
        "",
        *overview_table(found["runs"], links=""),
        "",
        "The figures are accuracies of exact answers. Under the protocol `seed`, training and test "
        "questions are drawn from the same set; under `held-out`, from disjoint sets, with all "
        "rearrangements of a question in the same set. `seen` is the share of test questions that "
        "are also training questions; `read` is the share that occurs in the language model's "
        "pretraining data (? if that data is not known). A run whose title names a split rule was "
        "not repeated after the rule was changed, so its questions differ from those of the "
        "neighbouring run. All systems except the global head share one training budget, and MoE "
        "and RED share one router, trained on range labels. The protocol and base `seed` follow "
        "[seed 001](../../departures.md), the text that describes RED. Figures that its author "
        "published elsewhere are of [another task]"
        "(../../departures.md#figures-of-the-authors-repository) and stand in no table here.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), "utf-8")


def overview(folder: Path) -> dict[str, Any]:
    """Return the main figures of every run under a folder."""
    runs = []
    for path in sorted(folder.glob("*/metrics.json")):
        metrics = json.loads(path.read_text("utf-8"))
        plan = metrics["plan"]
        runs.append(
            {
                "name": path.parent.name,
                "task": plan["task"] + (", stratified" if plan["stratified"] else ""),
                "protocol": plan["protocol"],
                "backbone": plan["backbone"],
                "base": plan["recipe"],
                "seeds": plan["seeds"],
                "rows": metrics["rows"],
                "seen": metrics["seen"],
                "earlier_rule": earlier_rule(metrics),
                "systems": {s: metrics["systems"][key_of(s)]["accuracy"] for s in SYSTEMS},
            }
        )
    return {"schema": "red-lab.red-overview/1", "runs": runs}


def overview_table(runs: Sequence[Mapping[str, Any]], *, links: str) -> list[str]:
    """Return the lines of a table of runs; `links` is the path prefix of their folders."""
    head = [
        "run",
        "base",
        "seeds",
        "seen",
        "read",
        *(s.replace("RED", "**RED**") for s in SYSTEMS),
        "RED, 95 %",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for run in runs:
        red = run["systems"]["RED"]
        title = f"{run['backbone']}, {run['task']}, {run['protocol']}"
        title += f", split rule {run['earlier_rule']}" if run["earlier_rule"] else ""
        cells = [f"[{title}]({links}{run['name']}/README.md)", run["base"], str(run["seeds"])]
        read = run["seen"]["pretraining"]
        cells += [f"{run['seen']['training']:.1%}", "?" if read is None else f"{read:.1%}"]
        cells += [f"{run['systems'][s]['mean']:.3f}" for s in SYSTEMS]
        lines.append(f"| {' | '.join(cells)} | {red['low']:.3f}–{red['high']:.3f} |")
    return lines
