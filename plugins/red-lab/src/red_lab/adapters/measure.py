"""Measure every way to choose, mix or merge the adapters, on the same excerpts in one run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from red_lab.adapters import strangers, study
from red_lab.adapters.cost import measure_cost
from red_lab.adapters.judge import Judge, Read
from red_lab.adapters.ledger import Ledger
from red_lab.adapters.mixtures import MERGES, arrow, merged
from red_lab.adapters.page import write_page
from red_lab.adapters.passes import Files, expert_of, files_of, shuffled
from red_lab.adapters.scores import mistakes, score
from red_lab.adapters.selection import ROUTERS, Selection, digests
from red_lab.adapters.study import Study, open_study
from red_lab.adapters.xlora import STEPS, train_xlora, xlora
from red_lab.metrics import write_json
from red_lab.readme import refresh_here
from redhost.core.composition.choose import compare_routers
from redhost.core.routers.base import Router

__all__ = ["measure", "run"]

NONE, ORACLE, ARROW = "no adapter", "oracle", "PEFT's Arrow"
XLORA, JOINT = "X-LoRA", "joint adapter"


def run(*, out: Path, work: Path, runs: int) -> Path:
    """Train missing adapters, measure, and write the metrics and their page.

    Args:
        out: The folder for results.
        work: The folder for adapters, features and measured bits.
        runs: Rounds of timed measurements.
    """
    opened = open_study(work)
    path = write_json(measure(opened, work=work), out / "metrics.json")
    write_json(measure_cost(opened, runs=runs), out / "cost.json")
    write_page(out)
    refresh_here()
    return path


def measure(opened: Study, *, work: Path) -> dict[str, Any]:
    """Measure on the test excerpts; the weight of a merge is chosen on validation excerpts."""
    bare, test = opened.context.backbone, opened.test
    first = next(iter(opened.adapters.values()))
    judge = Judge(backbone=bare, acts=expert_of(files_of(first)).intervention(bare))
    gate = train_xlora(work / "xlora", [*opened.adapters.values()], opened.learnt)
    models = _models(opened, judge, gate)
    counted, valid = (
        Ledger(work / "bits", judge=judge, excerpts=excerpts, models=models)
        for excerpts in (test, opened.valid)
    )
    selection = Selection(study=opened)
    choices = _choices(opened, selection)
    weights = {way: _best_weight(valid, way, len(opened.adapters)) for way in MERGES}
    every = {
        **choices,
        "shuffled numbers, named": [f"shuffled {e.domain}" for e in test],
        **{way: [_merge(way, w)] * len(test) for way, w in weights.items()},
        **{name: [name] * len(test) for name in (NONE, ARROW, XLORA, JOINT)},
    }
    counts = {name: np.array(counted.bits(models)) for name, models in every.items()}
    return {
        "schema": "red-lab.adapters/3",
        "setting": _setting(opened),
        "merge_weights": weights,
        "systems": {
            name: score(bits, test, base=counts[NONE], best=counts[ORACLE])
            for name, bits in counts.items()
        },
        "mistakes": {name: mistakes(chosen, test) for name, chosen in choices.items()},
        "auto": _auto(selection),
        "change": _change(selection, opened, counted),
    }


def _models(opened: Study, judge: Judge, gate: Path) -> dict[str, Callable[[], Read]]:
    """Return a factory of each model that an excerpt can be read with."""

    def of(files: Callable[[], Files]) -> Read:
        return judge.through(expert_of(files()).intervention(judge.backbone))

    adapters = dict(opened.adapters)
    files: dict[str, Callable[[], Files]] = {
        **{name: partial(files_of, folder) for name, folder in adapters.items()},
        JOINT: partial(files_of, opened.joint),
        **{
            f"shuffled {name}": partial(_shuffled, folder, seed)
            for seed, (name, folder) in enumerate(adapters.items())
        },
        **{
            _merge(way, weight): partial(merged, adapters, way, weight=weight)
            for way in MERGES
            for weight in _weights(way, len(adapters))
        },
    }
    models = {name: partial(of, make) for name, make in files.items()}
    return {
        **models,
        NONE: lambda: judge.bare,
        ARROW: partial(arrow, adapters),
        XLORA: partial(xlora, [*adapters.values()], gate),
    }


def _shuffled(folder: Path, seed: int) -> Files:
    return shuffled(files_of(folder), seed)


def _merge(way: str, weight: float) -> str:
    return f"{way}, {weight:.3g}"


def _weights(way: str, count: int) -> tuple[float, ...]:
    """Return the candidate weights of each of `count` adapters in a merge."""
    return (1 / count,) if way == "uniform merge" else (1 / count, 1.0)


def _best_weight(ledger: Ledger, way: str, count: int) -> float:
    """Return the weight with the fewest bits on the validation excerpts."""
    first, *others = _weights(way, count)
    if not others:
        return first
    rows = len(ledger.excerpts)
    return min((first, *others), key=lambda w: sum(ledger.bits([_merge(way, w)] * rows)))


def _choices(opened: Study, selection: Selection) -> dict[str, list[str]]:
    """Return the adapter that each selection method names for each excerpt."""
    test, names = opened.test, selection.names
    found = {
        ORACLE: [e.domain for e in test],
        "nearest centroid": selection.nearest(test),
        "at random": selection.at_random(test),
    }
    for kind in ROUTERS:
        found[kind] = _named(selection.chosen(selection.router(kind, names=names)[0], test), names)
    return found


def _named(chosen: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the model for each choice: no adapter if the backbone's column was chosen."""
    return [c if c in names else NONE for c in chosen]


def _auto(selection: Selection) -> dict[str, Any]:
    """Return the router that `auto` chooses, with the scores compared."""
    routers = {k: selection.router(k, names=selection.names)[0] for k in ROUTERS[:2]}
    found = compare_routers(routers, [*selection.data.values()])
    return {"kind": found.kind, "tried": dict(found.tried)}


def _change(selection: Selection, opened: Study, ledger: Ledger) -> dict[str, Any]:
    """Remove the last adapter, add it, and remove it again; return the changes."""
    *others, newcomer = names = selection.names
    before = digests(opened.adapters)
    made = [selection.router(ROUTERS[0], names=some) for some in (others, names, others)]
    without, whole = (
        _named(selection.chosen(router, opened.test), names) for router, _ in made[:2]
    )
    own = [n for n, e in enumerate(opened.test) if e.domain == newcomer]
    size = sum(opened.test[n].size for n in own)
    counted = [ledger.bits(chosen) for chosen in (without, whole)]
    pairs = zip(without, whole, strict=True)
    return {
        "newcomer": newcomer,
        "seconds": [seconds for _, seconds in made],
        "adapters_equal": digests(opened.adapters) == before,
        "router_restored": _digest(made[0][0]) == _digest(made[2][0]),
        "others": len(opened.test) - len(own),
        "others_moved": sum(a != b for n, (a, b) in enumerate(pairs) if n not in own),
        "bits": [sum(bits[n] for n in own) / size for bits in counted],
    }


def _digest(router: Router) -> str:
    tensors = {n: t.contiguous() for n, t in router.state_dict().items()}
    return hashlib.sha256(safetensors.torch.save(tensors)).hexdigest()


def _setting(opened: Study) -> dict[str, Any]:
    return {
        "domains": list(opened.adapters),
        "rank": strangers.RANK,
        "blocks": strangers.BLOCKS,
        "steps": study.STEPS,
        "early": study.EARLY,
        "step_tokens": strangers.BATCH * strangers.WINDOW,
        "prompt": study.PROMPT,
        "longest": study.LONGEST,
        "excerpts": len(opened.test),
        "bytes": sum(e.size for e in opened.test),
        "card": study.SHOWN,
        "joint_steps": len(opened.learnt) // strangers.BATCH,
        "gate_windows": STEPS,
    }
