"""Measure every way to choose, mix or merge the adapters, on the same excerpts in one run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from red_lab.adapters import study, training
from red_lab.adapters.cost import measure_cost
from red_lab.adapters.judge import Judge, Ledger, Read, mistakes, score
from red_lab.adapters.mixtures import STEPS, arrow, train_xlora, xlora
from red_lab.adapters.passes import Files, combined, expert_of, files_of, in_peft, shuffled
from red_lab.adapters.selection import ROUTERS, Selection
from red_lab.adapters.study import Study, open_study
from red_lab.metrics import Metrics, write_results
from red_lab.readme import refresh_here
from red_lab.rendering import render
from redhost.core.composition.choose import compare_routers
from redhost.core.routers.base import Router

__all__ = ["measure", "page", "run"]

NONE, ORACLE, ARROW = "no adapter", "oracle", "PEFT's Arrow"
XLORA, JOINT = "X-LoRA", "joint adapter"

MERGES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "uniform merge": ("cat", {}),
    "TIES merge": ("ties", {"density": 0.2}),
    "DARE merge": ("dare_linear", {"density": 0.5}),
}
"""Name → PEFT's combination type and its options; `cat` is the sum of the updates themselves."""


def run(*, out: Path, work: Path, runs: int) -> Path:
    """Train missing adapters, measure, and write the metrics and their page.

    Args:
        out: The folder for results.
        work: The folder for adapters, features and measured bits.
        runs: Rounds of timed measurements.
    """
    opened = open_study(work)
    metrics = {**measure(opened, work=work), "cost": measure_cost(opened, runs=runs)}
    path = write_results(metrics, out, page=page)
    refresh_here()
    return path


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.adapters/4``."""
    return render("adapters", metrics)


def measure(opened: Study, *, work: Path) -> dict[str, Any]:
    """Measure on the test excerpts; the weight of a merge is chosen on validation excerpts."""
    test = opened.test
    gate = train_xlora(work / "xlora", [*opened.adapters.values()], opened.learnt)
    tested, valid = _ledgers(opened, gate, work / "bits")
    selection = Selection(study=opened)
    choices = _choices(selection)
    weights = {way: _best_weight(valid, way, len(opened.adapters)) for way in MERGES}
    models = {
        **choices,
        "shuffled numbers, named": [f"shuffled {e.domain}" for e in test],
        **{way: [_merge(way, w)] * len(test) for way, w in weights.items()},
        **{name: [name] * len(test) for name in (NONE, ARROW, XLORA, JOINT)},
    }
    counts = {name: np.array(tested.bits(each)) for name, each in models.items()}
    return {
        "schema": "red-lab.adapters/4",
        "setting": _setting(opened),
        "merge_weights": weights,
        "systems": {
            name: score(bits, test, base=counts[NONE], best=counts[ORACLE])
            for name, bits in counts.items()
        },
        "mistakes": {name: mistakes(chosen, test) for name, chosen in choices.items()},
        "auto": _auto(selection),
        "change": _change(selection, tested),
    }


def _ledgers(opened: Study, gate: Path, folder: Path) -> tuple[Ledger, Ledger]:
    """Return the bits of test and validation excerpts, under any model of the study."""
    bare, adapters = opened.context.backbone, opened.adapters
    first = files_of(next(iter(adapters.values())))
    judge = Judge(backbone=bare, acts=expert_of(first).intervention(bare))

    @cache
    def all_in_peft() -> Any:
        return in_peft(training.language_model()[0], adapters)

    def merged(way: str, weight: float) -> Files:
        how, options = MERGES[way]
        return combined(all_in_peft(), list(adapters), how, weight=weight, options=options)

    files: dict[str, Callable[[], Files]] = {JOINT: partial(files_of, opened.joint)}
    for seed, (name, path) in enumerate(adapters.items()):
        files[name] = partial(files_of, path)
        files[f"shuffled {name}"] = partial(shuffled, files_of(path), seed)
    for way in MERGES:
        for weight in _weights(way, len(adapters)):
            files[_merge(way, weight)] = partial(merged, way, weight)

    def through(make: Callable[[], Files]) -> Read:
        return judge.through(expert_of(make()).intervention(bare))

    models: dict[str, Callable[[], Read]] = {
        **{name: partial(through, make) for name, make in files.items()},
        NONE: lambda: judge.bare,
        ARROW: partial(arrow, adapters),
        XLORA: partial(xlora, [*adapters.values()], gate),
    }
    test, valid = (
        Ledger(folder, judge=judge, excerpts=excerpts, models=models)
        for excerpts in (opened.test, opened.valid)
    )
    return test, valid


def _merge(way: str, weight: float) -> str:
    return f"{way}, {weight:.3g}"


def _weights(way: str, count: int) -> tuple[float, ...]:
    """Return the candidate weights of each of `count` adapters in a merge."""
    return (1 / count,) if way == "uniform merge" else (1 / count, 1.0)


def _best_weight(ledger: Ledger, way: str, count: int) -> float:
    """Return the weight with the fewest bits on the validation excerpts."""
    rows = len(ledger.excerpts)
    return min(_weights(way, count), key=lambda w: sum(ledger.bits([_merge(way, w)] * rows)))


def _choices(selection: Selection) -> dict[str, list[str]]:
    """Return the adapter that each selection method names for each excerpt."""
    named = {
        ORACLE: [e.domain for e in selection.study.test],
        "nearest centroid": selection.nearest(),
        "at random": selection.at_random(),
    }
    for kind in ROUTERS:
        named[kind] = _routed(selection, selection.router(kind, names=selection.names)[0])
    return named


def _routed(selection: Selection, router: Router) -> list[str]:
    """Return the model for each excerpt: no adapter if the backbone's column was chosen."""
    return [c if c in selection.names else NONE for c in selection.chosen(router)]


def _auto(selection: Selection) -> dict[str, Any]:
    """Return the router that `auto` chooses, with the scores compared."""
    routers = {k: selection.router(k, names=selection.names)[0] for k in ROUTERS[:2]}
    choice = compare_routers(routers, [*selection.data.values()])
    return {"kind": choice.kind, "tried": dict(choice.tried)}


def _change(selection: Selection, ledger: Ledger) -> dict[str, Any]:
    """Solve the router without the last adapter, with it, and without it; return the changes."""
    *others, newcomer = names = selection.names
    solved = [selection.router(ROUTERS[0], names=n) for n in (others, names, others)]
    before, after = (_routed(selection, router) for router, _ in solved[:2])
    excerpts = ledger.excerpts
    joined = [n for n, e in enumerate(excerpts) if e.domain == newcomer]
    size = sum(excerpts[n].size for n in joined)
    counted = [ledger.bits(chosen) for chosen in (before, after)]
    pairs = zip(before, after, strict=True)
    return {
        "newcomer": newcomer,
        "seconds": [seconds for _, seconds in solved],
        "router_restored": _digest(solved[0][0]) == _digest(solved[2][0]),
        "others": len(excerpts) - len(joined),
        "others_moved": sum(a != b for n, (a, b) in enumerate(pairs) if n not in joined),
        "bits": [sum(bits[n] for n in joined) / size for bits in counted],
    }


def _digest(router: Router) -> str:
    tensors = {n: t.contiguous() for n, t in router.state_dict().items()}
    return hashlib.sha256(safetensors.torch.save(tensors)).hexdigest()


def _setting(opened: Study) -> dict[str, Any]:
    return {
        "domains": list(opened.adapters),
        "rank": training.RANK,
        "blocks": training.BLOCKS,
        "steps": study.STEPS,
        "early": study.EARLY,
        "step_tokens": training.BATCH * training.WINDOW,
        "prompt": study.PROMPT,
        "longest": study.LONGEST,
        "excerpts": len(opened.test),
        "bytes": sum(e.size for e in opened.test),
        "card": study.SHOWN,
        "joint_steps": len(opened.learnt) // training.BATCH,
        "gate_windows": STEPS,
    }
