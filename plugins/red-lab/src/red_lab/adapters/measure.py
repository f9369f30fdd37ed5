"""Measure every way to choose, mix or merge the adapters, on the same rows in one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import redhost
from red_lab.adapters import authors as study
from red_lab.adapters import tasks
from red_lab.adapters.authors import Authors, open_authors
from red_lab.adapters.choices import chosen_by, routers_of
from red_lab.adapters.page import write_page
from red_lab.adapters.passes import Passes, arrow, expert_of, files_of, merged, shuffled
from red_lab.intervals import interval
from redhost.core.bus.experts import Expert
from redhost.core.training.linear_head import solve_linear_head

__all__ = ["ROUTERS", "head_of", "measure", "run"]

ROUTERS = ("ridge:k=1", "statistics:k=1", "centroid")
"""Of the product, which takes the first or the second by itself, by rows of the cards held back."""

MERGES = {"uniform merge": "linear", "TIES merge": "ties", "DARE merge": "dare_linear"}

FEW = 60
"""Rows of a task that heads over random adapters are solved on: each is a pass of its own."""

Read = Callable[[Sequence[str]], Tensor]
"""Texts → h' ``(N, D)``."""


def run(*, out: Path, work: Path, names: Sequence[str] | None = None) -> Path:
    """Train what is not trained, measure, and write metrics and page.

    Args:
        out: Where the results go.
        work: Where packages and features are kept.
        names: The tasks; by default all.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "metrics.json"
    found = measure(open_authors(work, names=names))
    path.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", "utf-8")
    write_page(found, out / "README.md")
    return path


def measure(authors: Authors) -> dict[str, Any]:
    """Measure on the authors' test rows."""
    given = tasks.rows("test")
    rows = [r for name in authors.packages for r in given[name]]
    judge = _Judge(authors, rows)
    systems = dict[str, dict[str, Any]]()
    for name, chosen in chosen_by(authors, routers_of(authors, ROUTERS), rows).items():
        systems[name] = judge.of_choice(chosen)
    dealt = {n: shuffled(files_of(p), seed) for seed, (n, p) in enumerate(authors.packages.items())}
    systems["random adapters, oracle"] = judge.of_random(dealt)
    systems["no adapter, head of the frozen states, oracle"] = judge.of_frozen()
    systems["no adapter, few rows"] = judge.of_frozen(FEW)
    for name, how in MERGES.items():
        acts = expert_of(merged(authors, how)).intervention(judge.bare)
        systems[name] = judge.of_mixed(partial(judge.passes.moved, acts=acts))
    made = arrow(authors)
    systems["PEFT's Arrow"] = judge.of_mixed(lambda texts: judge.passes.through(texts, made))
    return {
        "schema": "red-lab.adapters/1",
        "rows": len(rows),
        "tasks": len(authors.packages),
        "tokens": study.TOKENS,
        "rank": study.RANK,
        "blocks": study.BLOCKS,
        "learn": tasks.LEARN,
        "few": FEW,
        "card": max(len(p.fit) + len(p.gate) for p in authors.parts.values()),
        "systems": systems,
    }


class _Judge:
    """Scores on rows, each by the head of its own task, or by that of the adapter chosen."""

    def __init__(self, authors: Authors, rows: Sequence[redhost.Row]) -> None:
        self.authors, self.rows = authors, rows
        self.bare = authors.context.backbone
        self.norm = redhost.plugins.LayerNorm(width=self.bare.width, eps=self.bare.eps)
        files = {n: files_of(p) for n, p in authors.packages.items()}
        self.acts = {n: expert_of(f).intervention(self.bare) for n, f in files.items()}
        self.passes = Passes(self.bare, next(iter(self.acts.values())))
        self.heads = {n: head_of(p) for n, p in authors.packages.items()}
        self.known = dict[tuple[str, str], Tensor]()

    def moved(self, name: str, texts: Sequence[str]) -> Tensor:
        """Return h' ``(N, D)`` of an adapter; remembered."""
        new = [t for t in dict.fromkeys(texts) if (name, t) not in self.known]
        if new:
            found = self.passes.moved(new, self.acts[name])
            self.known |= {(name, t): h for t, h in zip(new, found, strict=True)}
        return torch.stack([self.known[name, t] for t in texts])

    def of_choice(self, chosen: Sequence[str]) -> dict[str, Any]:
        """Score a choice of one adapter for each row."""
        named, answered = [False] * len(self.rows), [False] * len(self.rows)
        for name in dict.fromkeys(chosen):
            index = [n for n, c in enumerate(chosen) if c == name]
            z = self.norm(self.moved(name, [self.rows[n].text for n in index]))
            for n, row in zip(index, z, strict=True):
                named[n] = self._right(self.heads[str(self.rows[n].domain)], row, n)
                answered[n] = self._right(self.heads[name], row, n)
        own = [c == r.domain for c, r in zip(chosen, self.rows, strict=True)]
        return {"named": _share(named), "answered": _share(answered), "chosen": _share(own)}

    def of_mixed(self, read: Read) -> dict[str, Any]:
        """Score one model of all adapters, by the head of each row's own task."""
        z = self.norm(read([r.text for r in self.rows]))
        hits = [self._right(self.heads[str(r.domain)], z[n], n) for n, r in enumerate(self.rows)]
        return {"named": _share(hits)}

    def of_random(self, dealt: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
        """Score adapters of random numbers, each with a head solved on what they make of rows."""
        acts = {n: expert_of(files).intervention(self.bare) for n, files in dealt.items()}
        reads = {n: partial(self.passes.moved, acts=a) for n, a in acts.items()}
        return self._solved(reads, learn=FEW)

    def of_frozen(self, learn: int | None = None) -> dict[str, Any]:
        """Score heads that are solved on the frozen states, of so many rows at most."""
        return self._solved(dict.fromkeys(self.acts, self.authors.context.encode), learn=learn)

    def _solved(self, reads: Mapping[str, Read], *, learn: int | None) -> dict[str, Any]:
        hits = [False] * len(self.rows)
        for name, read in reads.items():
            part = self.authors.parts[name]
            taught = [*part.train, *part.valid][:learn]
            z = self.norm(read([r.text for r in taught]))
            labels = tuple(sorted({r.label for r in part.train}))
            head = solve_linear_head(z, [r.label for r in taught], labels).expert
            index = [n for n, r in enumerate(self.rows) if r.domain == name]
            own = self.norm(read([self.rows[n].text for n in index]))
            for n, row in zip(index, own, strict=True):
                hits[n] = self._right(head, row, n)
        return {"named": _share(hits)}

    def _right(self, head: Expert, z: Tensor, n: int) -> bool:
        with torch.inference_mode():
            return head.labels[int(head(z[None]).argmax())] == self.rows[n].label


def head_of(package: Path) -> Expert:
    """Return an adapter's expert with its own head: on the bus it is that head alone."""
    from redhost.core.model.build import make_expert_module
    from redhost.core.plugins.manager import Plugins
    from redhost.registry.package.discover import from_folder
    from redhost.registry.package.readers import read_expert

    files = read_expert(from_folder(package)).unwrap(package.name)
    bus = redhost.BusConfig(width=files.manifest.reads.width, labels=())
    return make_expert_module(files, bus=bus, plugins=Plugins(()), providers={}).unwrap(
        package.name
    )


def _share(hits: Sequence[bool]) -> dict[str, Any]:
    """Return the share of hits and every hit as a digit, so that systems can be paired."""
    found = np.asarray(hits, dtype=np.float64)
    low, high = interval(found, [str(n) for n in range(len(found))])
    return {"mean": float(found.mean()), "low": low, "high": high}
