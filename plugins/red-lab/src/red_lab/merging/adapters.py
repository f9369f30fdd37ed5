"""Separately trained LoRA adapters: averaged, summed, routed, and compared with a joint one.

One adapter for each range of sums on the tiny backbone, in the upper half of its blocks. PEFT
merges them. Answers are computed by the backbone's frozen classifier, as for RED's experts.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from redhost_peft.adapter import TrainedAdapterRecipe

import redhost
from red_lab.adapters.merges import combined, in_peft
from red_lab.adapters.passes import Files, expert_of, files_of, shuffled
from red_lab.merging.folded import joint
from red_lab.merging.judge import hits, size
from red_lab.merging.subjects import Subject
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import hits_by_system

__all__ = ["EPOCHS", "MERGES", "RANK", "RATES", "adapters"]

RANK = 8
"""R of an adapter."""

EPOCHS = 100
RATES = {1: 3e-3, 5: 1e-3}
"""Learning rate by rank, in adapters' ranks; chosen on gate rows like the epochs (lab notes)."""

MERGES: Mapping[str, tuple[str, float, Mapping[str, float]]] = {
    "updates averaged": ("cat", 0.2, {}),
    "parameters averaged": ("linear", 0.04, {}),  # (mean of B) (mean of A): weights count twice
    "updates summed": ("cat", 1.0, {}),
    "TIES merge": ("ties", 1.0, {"density": 0.2}),
}
"""Name → PEFT's combination type, the weight of each adapter, and options."""


def adapters(subject: Subject, *, seed: int, work: Path) -> dict[str, Any]:
    """Train an adapter for each part, merge and route them, and evaluate all on the test rows.

    Args:
        subject: The data; its experts write hidden states.
        seed: Random seed of all training.
        work: Folder of packages; existing packages are replaced.

    Returns:
        Hits by system, and the number of parameters of each.
    """
    folder = work / f"adapters-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    made = {i: _train(subject, i, folder, seed=seed) for i in subject.parts}
    composed = compose(subject.backbone, [*made.values()], cache=subject.cache).composed
    systems = hits_by_system(
        composed, subject.test, encode=lambda texts: composed.backbone.encode(list(texts))
    )
    names = ("routed", "oracle", "uniform", "sum", "best_single")
    found = {n: systems[n].tolist() for n in names}
    files: dict[str, Files] = {}
    peft = in_peft(copy.deepcopy(subject.context.backbone.trunk.model), made)
    for name, (how, weight, options) in MERGES.items():
        files[name] = combined(peft, list(made), how, weight=weight, options=options)
    whole, count = joint(subject), len(made)
    for name, ranks in (("joint", 1), ("joint, all ranks", count)):
        files[name] = files_of(_train(whole, "joint", folder / name, seed=seed, ranks=ranks))
    files["shuffled joint"] = shuffled(files["joint"], seed)
    experts = {name: expert_of(f) for name, f in files.items()}
    found |= {name: hits(expert, subject) for name, expert in experts.items()}
    one = size(expert_of(files_of(next(iter(made.values())))))
    sizes = dict.fromkeys(names, count * one) | {"best_single": one}
    sizes |= {name: size(expert) for name, expert in experts.items()}
    return {"hits": found, "sizes": sizes, "router": composed.router_kind}


def _train(subject: Subject, expert_id: str, folder: Path, *, seed: int, ranks: int = 1) -> Path:
    rank, project = ranks * RANK, folder / f"red-expert-{expert_id}"
    package = redhost.authoring.write_project(
        project, kind="expert", package_id=expert_id, summary="merging"
    )
    plan = redhost.authoring.ExpertPlan(id=expert_id, form="lora", writes="hidden", rank=rank)
    settings = replace(
        TrainedAdapterRecipe.settings_by_default,
        epochs=EPOCHS,
        learning_rate=RATES[ranks],
        patience=EPOCHS,
        rank=rank,
        seed=seed,
    )
    parts = subject.parts[expert_id]
    with suppress(redhost.errors.HarmError):  # an adapter that learnt nothing is measured as well
        redhost.authoring.train_package(
            project, plan, parts, context=subject.context, settings=settings
        )
    return package
