"""The data: frozen features, and labels in the order of five domains.

Two data sets: additions on SmolLM2-135M, and 20 Newsgroups on a sentence encoder. Both are loaded
as in the experiments that they come from, `redhost lab red` and `redhost lab text`, whose features
on disk are reused if they exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import redhost
from red_lab.arithmetic import range_of
from red_lab.newsgroups import TEAMS, owner
from red_lab.red.base import FrozenBase
from red_lab.red.experts import NAMES
from red_lab.red.measure import Plan
from red_lab.red.queries import LABELS, Query
from red_lab.red.run import Seed
from red_lab.text.corpora import CORPORA
from red_lab.text.desk import Desk, open_desk
from redhost.core.bus.bus import LayerNorm

__all__ = ["DataPart", "Problem", "arithmetic", "load", "text"]


@dataclass(frozen=True, kw_only=True, eq=False)
class DataPart:
    """Rows.

    Attributes:
        h: Features ``(N, D)``.
        z: Their LayerNorm ``(N, D)``.
        target: The index of each row's label, ``(N,)``.
        owner: The index of each row's domain, ``(N,)``.
    """

    h: Tensor
    z: Tensor
    target: Tensor
    owner: Tensor

    def __len__(self) -> int:
        return len(self.h)

    def __getitem__(self, rows: Tensor) -> DataPart:
        return DataPart(
            h=self.h[rows], z=self.z[rows], target=self.target[rows], owner=self.owner[rows]
        )

    def of(self, domain: int) -> DataPart:
        """Return the rows of a domain."""
        return self[(self.owner == domain).nonzero()[:, 0]]

    def distinct(self) -> DataPart:
        """Return every input once."""
        first = {row.numpy().tobytes(): n for n, row in reversed([*enumerate(self.h)])}
        return self[torch.tensor(sorted(first.values()))]

    def some(self, rows: int, *, seed: int = 0) -> DataPart:
        """Return a number of rows, the same ones for the same seed; all rows if there are fewer."""
        generator = torch.Generator().manual_seed(seed)
        return self[torch.randperm(len(self), generator=generator)[:rows]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A data set with five domains.

    Attributes:
        name: ``arithmetic`` or ``text``.
        domains: The domains' names, E of them, sorted.
        labels_of: The labels of each domain, disjoint.
        train: The training rows of every system.
        valid: The rows by which settings are chosen.
        test: The test rows.
        clusters: The observation that each test row belongs to.
        norm: h → z.
        classifier: A frozen W_c ``(C, D)`` that experts write through, or None if they have labels
            of their own.
    """

    name: str
    domains: tuple[str, ...]
    labels_of: tuple[tuple[str, ...], ...]
    train: DataPart
    valid: DataPart
    test: DataPart
    clusters: tuple[str, ...]
    norm: LayerNorm
    classifier: Tensor | None

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, domain by domain, C of them."""
        return tuple(itertools.chain.from_iterable(self.labels_of))

    @property
    def width(self) -> int:
        """D."""
        return self.norm.width

    @property
    def rank(self) -> int:
        """R of each residual expert: a quarter of D (seed 001, section 4.5.4)."""
        return max(1, self.width // 4)


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
