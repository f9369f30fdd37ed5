"""Six domains of sums on the tiny backbone: the five ranges, with the middle one split in two.

Five are composed, the sixth is the newcomer. Its experts are trained like the shipped ones; models
that pool the last token get rows in batches of one token length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from red_lab.arithmetic import RANGES, ArithmeticRow, Role, Split, pairs_with, range_of, rows
from red_lab.base import LABELS
from red_lab.hotswap_measure import shipped
from red_lab.ranges import EXPERT, RangeTrainingContext, open_range_training, train_on, write_expert
from red_lab.tiny_model import make_tokenizer
from redhost.core.types import BackgroundRow

__all__ = [
    "CUT",
    "DOMAINS",
    "NEWCOMER",
    "PeerBatch",
    "accuracy",
    "batches",
    "build_experts",
    "domain_of",
    "held_out",
    "passes",
    "rows_of",
]

CUT, NEWCOMER = "range3", "range6"
MIDDLE = 50
"""The newcomer takes the sums above it from the range that is split."""

DOMAINS = (*(name for name, _, _ in RANGES), NEWCOMER)
SPLIT = Split.numbered(0)
ROLES: tuple[Role, ...] = ("train", "fit", "gate")


def domain_of(label: str) -> str:
    """Return the domain of a sum."""
    name = range_of(int(label))
    return NEWCOMER if name == CUT and int(label) > MIDDLE else name


def rows_of(domain: str, role: Role) -> list[ArithmeticRow]:
    """Return a domain's rows of one role: train, fit or gate."""
    return [r for r in _named(rows(pairs_with(SPLIT, role))) if r.domain == domain]


def held_out() -> list[ArithmeticRow]:
    """Return the held-out rows."""
    return _named(rows(SPLIT.test_pairs()))


def build_experts(work: Path) -> Mapping[str, Path]:
    """Train the experts that do not ship: both halves of the split range, one of them twice.

    Args:
        work: The folder of the packages; existing ones are not trained again.

    Returns:
        The package folders of ``range3``, ``range6`` and ``other``, another build of range3.
    """
    folders = {}
    context: RangeTrainingContext | None = None
    for name, domain, seed in ((CUT, CUT, 0), (NEWCOMER, NEWCOMER, 0), ("other", CUT, 1)):
        project = work / "experts" / name
        folder = project / "src" / f"red_expert_{domain}"
        if not (folder / "expert.json").exists():
            context = context or open_range_training(shipped()[0], SPLIT)
            folder = _build(context, domain, project, seed=seed)
        folders[name] = folder
    return folders


def _build(context: RangeTrainingContext, domain: str, project: Path, *, seed: int) -> Path:
    """Train one expert alone and write its package."""
    parts: dict[str, list[ArithmeticRow]] = {role: rows_of(domain, role) for role in ROLES}
    settings = dataclasses.replace(EXPERT, seed=seed)
    expert = train_on(
        context,
        parts["train"],
        labels=[y for y in context.backbone.labels if domain_of(y) == domain],
        others=[r.text for r in context.background if _background_domain(r) != domain],
        settings=settings,
    )
    return write_expert(
        context,
        domain,
        project,
        expert=expert,
        parts=parts,
        settings=settings,
        summary="an expert of the bench",
        domain="sums of the bench",
    )


def _background_domain(row: BackgroundRow) -> str | None:
    """Return the domain of a background text, which has only the unsplit ranges."""
    if row.domain != CUT:
        return row.domain
    a, b = (int(word.strip("?")) for word in row.text.split() if word.strip("?").isdigit())
    return domain_of(str(a + b))


def _named(found: Iterable[ArithmeticRow]) -> list[ArithmeticRow]:
    return [r._replace(domain=domain_of(r.label)) for r in found]


@dataclass(frozen=True, kw_only=True, eq=False)
class PeerBatch:
    """Token ids ``(B, T)``, label indices of the answers ``(B,)``, and the domains."""

    ids: Tensor
    answers: Tensor
    domains: tuple[str, ...]


def batches(rows: Sequence[ArithmeticRow], size: int) -> list[PeerBatch]:
    """Split rows, in their order, into batches of one token length each."""
    tokenizer: Any = make_tokenizer()
    by_length: dict[int, list[tuple[list[int], ArithmeticRow]]] = {}
    for row in rows:
        ids = list(tokenizer(row.text)["input_ids"])
        by_length.setdefault(len(ids), []).append((ids, row))
    return [
        PeerBatch(
            ids=torch.tensor([ids for ids, _ in part]),
            answers=torch.tensor([LABELS.index(row.label) for _, row in part]),
            domains=tuple(row.domain for _, row in part),
        )
        for same in by_length.values()
        for part in (same[n : n + size] for n in range(0, len(same), size))
    ]


def passes(rows: Sequence[ArithmeticRow], size: int, *, seed: int) -> Iterator[PeerBatch]:
    """Yield batches without end, reshuffled in every pass over the rows."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        made = batches([rows[i] for i in order], size)
        for n in torch.randperm(len(made), generator=generator).tolist():
            yield made[n]


def accuracy(answer: Callable[[PeerBatch], Tensor], rows: Sequence[ArithmeticRow]) -> float:
    """Return the fraction of rows whose largest logit is the answer's."""
    with torch.inference_mode():
        right = [answer(b).argmax(-1).eq(b.answers).sum() for b in batches(rows, 64)]
    return float(sum(right)) / len(rows)
