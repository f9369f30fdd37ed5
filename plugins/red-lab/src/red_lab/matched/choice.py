"""Choose the number of epochs with the best mean validation accuracy over all systems."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from red_lab.matched.data import Problem
from red_lab.matched.measure import hits
from red_lab.matched.recipe import Recipe, Tick
from red_lab.matched.train import EVIDENCE, train_all
from red_lab.toy.data import one_thread

__all__ = ["EPOCHS", "choose"]

EPOCHS = (5, 10, 20, 40, 80, 160)


def choose(
    open_problem: Callable[[], Problem],
    *,
    recipe: Recipe,
    file: Path,
    shown: Callable[[str, int], Tick],
    epochs: Sequence[int] = EPOCHS,
) -> dict[str, Any]:
    """Return the chosen epochs and the accuracies of all candidates; seed 0, without test rows.

    Args:
        open_problem: Returns the data; called if no stored result exists.
        recipe: The other training settings.
        file: File of the stored result; written if it does not exist.
        shown: Label and epochs of a training → its progress.
        epochs: The candidates; ties go to the earlier one.
    """
    if not file.exists():
        problem, valid = open_problem(), {}
        for number in epochs:
            given, tick = replace(recipe, epochs=number), shown(f"{number} epochs", number)
            with one_thread():
                trained = train_all(problem, recipe=given, seed=0, tick=tick)
            valid[str(number)] = {
                n: float(hits(t.system, problem.valid).mean())
                for n, t in trained.items()
                if n != EVIDENCE  # its confidences are measured on these rows
            }
        file.write_text(json.dumps({"valid": valid, "rows": len(problem.valid)}), "utf-8")
    measured: dict[str, Any] = json.loads(file.read_text("utf-8"))
    means = {int(n): sum(v.values()) / len(v) for n, v in measured["valid"].items()}
    return {**measured, "epochs": max(means, key=lambda n: means[n])}
