"""A family of arbitrarily many small domains: sums with one fixed number, which the text names.

Domain 1437 asks "1437: What is 59 plus 1437?" and answers the last digit of the sum, halved: five
answers per domain. Every operand is larger than 50, so no pair of the seed's task occurs. The tiny
backbone's features identify the number of a text only weakly: neighbouring numbers have similar
features, and a neighbour's expert gives other answers.

Packages are in slices, so that the first one, two, … folders contain 1, 10, 100, 1,000 and 1,001 of
them. A package with a RECORD is finished, and is not made again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import redhost_author
import torch
from redhost_author.training.context import open_backbone
from redhost_author.training.expert import ExpertRows, train_expert
from redhost_author.training.packaging import ExpertDraft, save_expert, texts_card
from redhost_author.versions import library_versions
from torch import Tensor

import redhost
from red_lab.progress import Bar
from red_lab.ranges import digest_of
from redhost.core.bus.bus import LayerNorm
from redhost.core.model.verify import measure_off_domain
from redhost.core.types import BackgroundRow, CardRow
from redhost.registry.package.manifest import BackboneRef, Training
from redhost.testing import Environment

__all__ = ["SIZES", "SLICES", "Role", "SumDomain", "install", "sites"]

Role = Literal["train", "fit", "gate", "test"]

SIZES: dict[Role, int] = {"train": 96, "fit": 24, "gate": 8, "test": 8}
"""Rows of each role, in the order in which they are drawn."""

FIRST = 1000
OPERANDS = range(51, 200)
ANSWERS = 5
BLOCKS = 19
RANKS = (4, 8, 12, 16, 24, 32, 16, 8)
SHAPES: tuple[tuple[str, Literal["hidden", "labels"]], ...] = (
    ("residual", "hidden"),
    ("residual", "hidden"),
    ("mlp", "hidden"),
    ("residual", "hidden"),
    ("residual", "hidden"),
    ("mlp", "hidden"),
    ("residual", "hidden"),
    ("residual", "labels"),
)


SLICES = ((0, 1), (1, 10), (10, 100), (100, 1000), (1000, 1001))
"""Places (first, past the last) of the packages of each folder."""

CHUNK = 30
"""Domains whose texts are encoded together."""

CANARIES = 4

EVERY = 8
"""One in so many background texts is used in training, to keep steps cheap."""


@dataclass(frozen=True)
class SumDomain:
    """One domain of the family.

    Attributes:
        place: Its index in the family, from 0.
    """

    place: int

    @property
    def number(self) -> int:
        """The number in all of its questions."""
        return FIRST + self.place

    @property
    def id(self) -> str:
        """The id of its expert."""
        return f"sum{self.number}"

    @property
    def module(self) -> str:
        """The package of its expert."""
        return f"scale_{self.id}"

    @property
    def settings(self) -> redhost_author.ExpertSettings:
        """The settings of its expert: forms, spaces and ranks vary over the domains."""
        form, space = SHAPES[self.place % len(SHAPES)]
        return redhost_author.ExpertSettings(
            form=form,
            space=space,
            rank=RANKS[self.place % len(RANKS)],
            epochs=100,
            batch=SIZES["train"],
            learning_rate=3e-2,
            weight_decay=0.01,
            dropout=0.0,
            off_domain=1e-2,
            seed=self.place,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Its answers: five of the backbone's labels, or labels of its own."""
        if self.settings.space == "labels":
            return tuple(f"{self.number}/{answer}" for answer in range(ANSWERS))
        start = 2 + ANSWERS * (self.place % BLOCKS)
        return tuple(str(start + answer) for answer in range(ANSWERS))

    def rows(self) -> dict[Role, list[redhost.Row]]:
        """Return its rows by role; roles are disjoint."""
        rng = random.Random(f"scale {self.number}")  # noqa: S311  (no secret)
        drawn = rng.sample(OPERANDS, sum(SIZES.values()))
        found: dict[Role, list[redhost.Row]] = {}
        for role, size in SIZES.items():
            found[role] = [self._row(b) for b in drawn[:size]]
            drawn = drawn[size:]
        return found

    def _row(self, b: int) -> redhost.Row:
        answer = (self.number + b) % 10 // 2
        text = f"{self.number}: What is {b} plus {self.number}?"
        return redhost.Row(text=text, label=self.labels[answer], domain=self.id)


@dataclass(frozen=True, kw_only=True, eq=False)
class FamilyContext:
    """The data that all authors of the family share.

    Attributes:
        backbone: The frozen backbone.
        reference: Its id and fingerprint.
        norm: h → z.
        background: Its background card.
        background_h: h of some of its texts, ``(M, D)``.
        background_z: z of all of its texts, by text.
    """

    backbone: redhost.Backbone
    reference: BackboneRef
    norm: LayerNorm
    background: tuple[BackgroundRow, ...]
    background_h: Tensor
    background_z: dict[str, Tensor]

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return z ``(N, D)`` of background texts."""
        return torch.stack([self.background_z[text] for text in texts])


def open_family(folder: Path) -> FamilyContext:
    """Open a backbone package's folder for the authors of the family."""
    manifest, backbone, background = open_backbone(folder)
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    texts = sorted({row.text for row in background})
    h = backbone.encode(texts)
    return FamilyContext(
        backbone=backbone,
        reference=BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
        norm=norm,
        background=background,
        background_h=h[::EVERY],
        background_z=dict(zip(texts, norm(h), strict=True)),
    )


def sites(work: Path, count: int) -> list[Path]:
    """Return the folders that contain the first `count` packages of the family."""
    return [work / f"site-{first}-{end}" for first, end in SLICES if first < count]


def install(work: Path, backbone: Path, *, count: int) -> list[Path]:
    """Install the first experts of the family; return the folders to put on the path.

    Args:
        work: The folder for the packages; existing ones are not made again.
        backbone: The folder of the backbone's package.
        count: Number of packages, one of the ends of `SLICES`.
    """
    missing = [
        (work / f"site-{first}-{end}", SumDomain(place))
        for first, end in SLICES
        if first < count
        for place in range(first, min(end, count))
        if not _record(work / f"site-{first}-{end}", SumDomain(place)).exists()
    ]
    if missing:
        context, bar = open_family(backbone), Bar("experts", total=len(missing))
        for start in range(0, len(missing), CHUNK):
            _make(missing[start : start + CHUNK], context)
            bar.update(min(start + CHUNK, len(missing)))
    return sites(work, count)


def _make(jobs: Sequence[tuple[Path, SumDomain]], context: FamilyContext) -> None:
    """Train and install some experts; their texts are encoded together."""
    rows = [domain.rows() for _, domain in jobs]
    texts = [r.text for found in rows for role in found.values() for r in role]
    features = dict(zip(texts, context.backbone.encode(texts), strict=True))
    for (site, domain), found in zip(jobs, rows, strict=True):
        h = {role: torch.stack([features[r.text] for r in rs]) for role, rs in found.items()}
        package = site / domain.module
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("raise AssertionError('data is never imported')\n")
        _save(package, domain, found, h, context)
        points = {"redhost.experts": f"{domain.id} = {domain.module}"}
        info = _record(site, domain).parent
        if info.exists():  # left without its RECORD by an interrupted run
            for file in info.iterdir():
                file.unlink()
            info.rmdir()
        Environment(site).write_info(domain.module.replace("_", "-"), "1.0", domain.module, points)


def _save(
    package: Path,
    domain: SumDomain,
    rows: dict[Role, list[redhost.Row]],
    h: dict[Role, Tensor],
    context: FamilyContext,
) -> None:
    """Train one expert alone and write its package's files."""
    expert = train_expert(
        ExpertRows(
            h=h["train"],
            z=context.norm(h["train"]),
            answers=[r.label for r in rows["train"]],
        ),
        context.backbone,
        labels=domain.labels,
        settings=domain.settings,
        background=context.norm(context.background_h),
    ).expert
    card = [
        CardRow(text=r.text, label=r.label, part=part)
        for part in ("fit", "gate")
        for r in rows[part]
    ]
    save_expert(
        package,
        ExpertDraft(
            expert=expert,
            id=domain.id,
            backbone=context.reference,
            domain=f"'{rows['test'][0].text}': the sum's last digit, halved",
            card=texts_card(card),
            canary=context.norm(h["train"][:CANARIES]),
            off_domain=measure_off_domain(
                expert, domain.id, context.backbone, context.background, read=context.read
            ),
            training=Training(
                data=digest_of(rows["train"]),
                seed=domain.place,
                epochs=domain.settings.epochs,
                metrics={},
                versions=library_versions(),
            ),
        ),
    )


def _record(site: Path, domain: SumDomain) -> Path:
    return site / f"{domain.module}-1.0.dist-info" / "RECORD"
