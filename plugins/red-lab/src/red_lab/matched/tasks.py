"""The two data sets: additions on SmolLM2-135M, and 20 Newsgroups on a sentence encoder.

Both are loaded as in the experiments that they come from, `redhost lab red` and `redhost lab text`,
whose features on disk are reused if they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

import redhost
from red_lab.arithmetic import range_of
from red_lab.matched.data import DataPart, Problem
from red_lab.newsgroups import TEAMS, owner
from red_lab.red.base import FrozenBase
from red_lab.red.experts import NAMES
from red_lab.red.plan import Plan
from red_lab.red.queries import LABELS, Query
from red_lab.red.run import Seed
from red_lab.text.corpora import CORPORA
from red_lab.text.desk import Desk, open_desk
from redhost.core.bus.bus import LayerNorm

__all__ = ["ADDITION", "arithmetic", "load", "text"]


ADDITION = Plan(task="addition", protocol="seed", backbone="smollm2", seeds=1)


def load(task: str, *, seed: int, work: Path) -> Problem:
    """Return a data set.

    Args:
        task: ``arithmetic`` or ``text``.
        seed: Random seed of the questions; texts have one split, by date.
        work: Folder of the experiments' features.
    """
    return text(work) if task == "text" else arithmetic(work, seed=seed)


def arithmetic(work: Path, *, seed: int, plan: Plan = ADDITION) -> Problem:
    """Return the additions of a seed; the base is trained if it is not on disk."""
    folder = work / "red"
    folder.mkdir(parents=True, exist_ok=True)
    stage = Seed(plan, seed, folder)
    base, data = stage.base(plan), stage.data
    norm = LayerNorm(width=base.h.shape[1], eps=1e-5)
    return Problem(
        name="arithmetic",
        domains=NAMES,
        labels_of=tuple(tuple(y for y in LABELS if range_of(int(y)) == name) for name in NAMES),
        train=_questions(base, data.train, norm),
        valid=_questions(base, data.valid, norm),
        test=_questions(base, data.test, norm),
        clusters=tuple(f"{seed} {q.cluster}" for q in data.test),
        norm=norm,
        classifier=base.classifier,
    )


def text(work: Path) -> Problem:
    """Return 20 Newsgroups; without cards, all rows except validation rows are training rows."""
    desk = open_desk(
        CORPORA["newsgroups"],
        encoder="minilm",
        work=work / "newsgroups",
        validation=False,
        features=None,
    )
    norm = LayerNorm(width=desk.context.backbone.width, eps=desk.context.backbone.eps)
    domains = tuple(sorted(TEAMS))
    labels_of = tuple(tuple(sorted(TEAMS[d])) for d in domains)
    parts = [desk.parts[d] for d in domains]
    return Problem(
        name="text",
        domains=domains,
        labels_of=labels_of,
        train=_posts(desk, [r for p in parts for r in (*p.train, *p.fit, *p.gate)], norm),
        valid=_posts(desk, [r for p in parts for r in p.valid], norm),
        test=_posts(desk, desk.test, norm),
        clusters=tuple(str(n) for n in range(len(desk.test))),
        norm=norm,
        classifier=None,
    )


def _questions(base: FrozenBase, queries: Sequence[Query], norm: LayerNorm) -> DataPart:
    """Return the questions as drawn, repeats included."""
    h = base.h[base.rows(queries)]
    return DataPart(
        h=h,
        z=norm(h),
        target=torch.tensor([LABELS.index(q.label) for q in queries]),
        owner=torch.tensor([NAMES.index(q.domain) for q in queries]),
    )


def _posts(desk: Desk, rows: Sequence[redhost.Row], norm: LayerNorm) -> DataPart:
    domains = sorted(TEAMS)
    labels = [y for d in domains for y in sorted(TEAMS[d])]
    h = desk.context.encode([r.text for r in rows])
    return DataPart(
        h=h,
        z=norm(h),
        target=torch.tensor([labels.index(r.label) for r in rows]),
        owner=torch.tensor([domains.index(owner(r.label)) for r in rows]),
    )
