"""Measure adapters inside the blocks, on the sentence encoder and on its next version."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from redhost_port.affine_map import fit_affine
from torch import Tensor

import redhost
from red_lab.adapters import tasks
from red_lab.adapters.authors import BLOCKS, RANK, AdapterAuthors, open_authors
from red_lab.adapters.passes import Passes, expert_of, files_of, head_of, shuffled
from red_lab.intervals import interval
from red_lab.port.versions import further_trained
from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.experts import Expert, MappedExpert
from redhost.core.training.linear_head import solve_linear_head

__all__ = ["TASKS", "lines", "measure"]

TASKS = ("graphics", "hardware", "vehicles", "policy", "companies", "rates")
"""Tasks of `red_lab.adapters.tasks`: pairs of labels that are hard to distinguish."""

JUDGE = 60
"""Most test rows of a label."""

SYSTEMS = {
    "own": "adapter and head on the old version",
    "as it is": "adapter and head unchanged on the new version",
    "mapped": "adapter unchanged, head behind a map fitted on unlabelled texts",
    "head anew": "adapter unchanged, head solved again on the author's rows",
    "retrained": "adapter and head retrained on the new version",
    "frozen": "no adapter: a head solved on the new version's vectors",
    "random": "adapter with shuffled parameters, head solved again",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Reader:
    """A version of the encoder, with adapters of one shape in it."""

    authors: AdapterAuthors
    passes: Passes

    @classmethod
    def of(cls, authors: AdapterAuthors, files: Mapping[str, bytes]) -> _Reader:
        bare = authors.context.backbone
        return cls(authors=authors, passes=Passes(bare, expert_of(files).intervention(bare)))

    def z(self, rows: Sequence[redhost.Row], files: Mapping[str, bytes] | None) -> Tensor:
        """Return z ``(N, D)`` with an adapter, or without one."""
        texts, bare = [r.text for r in rows], self.authors.context.backbone
        norm = LayerNorm(width=bare.width, eps=bare.eps)
        if files is None:
            h = self.authors.context.encode(texts)
        else:
            h = self.passes.moved(texts, expert_of(files).intervention(bare))
        z: Tensor = norm(h)
        return z


def measure(*, work: Path, validation: bool) -> dict[str, Any]:
    """Train adapters on both versions, and evaluate the old ones on the new version."""
    old = open_authors(work / "adapters", names=TASKS)
    new = open_authors(work / "adapters-next", names=TASKS, source=further_trained("minilm", work))
    hits: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for seed, task in enumerate(TASKS):
        judge, adapter = _test_rows(task, validation=validation), files_of(old.packages[task])
        before, after = (_Reader.of(a, adapter) for a in (old, new))
        part, head = old.parts[task], head_of(old.packages[task])
        taught = [*part.train, *part.valid]
        fitted = fit_affine(after.z(taught, adapter), before.z(taught, adapter))
        dealt, z = shuffled(adapter, seed), after.z(judge, adapter)
        own = files_of(new.packages[task])
        for name, (expert, read) in {
            "own": (head, before.z(judge, adapter)),
            "as it is": (head, z),
            "mapped": (MappedExpert(head, A=fitted.A, c=fitted.c), z),
            "head anew": (_solved(after.z(taught, adapter), taught), z),
            "retrained": (head_of(new.packages[task]), after.z(judge, own)),
            "frozen": (_solved(after.z(taught, None), taught), after.z(judge, None)),
            "random": (_solved(after.z(taught, dealt), taught), after.z(judge, dealt)),
        }.items():
            hits[name] += _hits(expert, read, judge)
    clusters = [str(n) for n in range(len(hits["own"]))]
    return {
        "tasks": len(TASKS),
        "rows": len(clusters),
        "systems": {name: _share(values, clusters) for name, values in hits.items()},
    }


def _test_rows(task: str, *, validation: bool) -> list[redhost.Row]:
    if not validation:
        return tasks.rows("test", judge=JUDGE)[task]
    seen = {r.text for r in tasks.rows("train")[task]}
    more = tasks.rows("train", learn=tasks.LEARN + JUDGE)[task]
    return [r for r in more if r.text not in seen]


def _solved(z: Tensor, rows: Sequence[redhost.Row]) -> Expert:
    labels = tuple(sorted({r.label for r in rows}))
    return solve_linear_head(z, [r.label for r in rows], labels).expert


def _hits(expert: Expert, z: Tensor, rows: Sequence[redhost.Row]) -> list[float]:
    with torch.inference_mode():
        best = expert(z).argmax(-1).tolist()
    return [float(expert.labels[k] == r.label) for k, r in zip(best, rows, strict=True)]


def _share(hits: Sequence[float], clusters: Sequence[str]) -> dict[str, float]:
    low, high = interval(np.array(hits), clusters)
    return {"mean": float(np.mean(hits)), "low": low, "high": high}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section of the page."""
    yield "## Adapters inside the blocks, minilm → minilm-next"
    yield ""
    yield (
        f"{found['tasks']} tasks of two labels, {found['rows']} rows; LoRA of rank {RANK} in the "
        f"top {BLOCKS} blocks."
    )
    yield ""
    yield "| system | accuracy |"
    yield "|---|---|"
    for name, title in SYSTEMS.items():
        s = found["systems"][name]
        yield f"| {title} | {s['mean']:.3f} ({s['low']:.3f} … {s['high']:.3f}) |"
    yield ""
    yield from textwrap.wrap(
        "Adapters trained on so few rows gain nothing here: a head on the frozen encoder does as "
        "well. That they still work on the new version is therefore weak evidence. Between models "
        "of different widths an adapter cannot be transferred: its factors do not fit the layers, "
        "and `redhost port` refuses it by name.",
        98,
    )
