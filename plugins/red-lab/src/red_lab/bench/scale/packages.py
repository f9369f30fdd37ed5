"""Make the family's experts: small, trained alone, each an installed package with its own card.

The packages lie in slices, so that 1, 10, 100, 1,000 and 1,001 of them are what is found in the
first one, two, … folders. A package whose RECORD is written is finished: work goes on from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import redhost
from red_lab.bench.scale.family import Domain, Role
from red_lab.progress import Bar
from redhost.testing import Environment

__all__ = ["SLICES", "Shop", "install", "open_shop", "sites"]

SLICES = ((0, 1), (1, 10), (10, 100), (100, 1000), (1000, 1001))
"""Places (first, past the last) of the packages of each folder."""

CHUNK = 30
"""Domains whose texts are encoded together."""

CANARIES = 4

EVERY = 8
"""One in so many background texts is trained on: a step should not cost more than it teaches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shop:
    """What all authors of the family share.

    Attributes:
        backbone: The frozen backbone.
        reference: Its id and fingerprint.
        norm: h → z.
        background: Its background card.
        background_h: h of some of its texts, ``(M, D)``.
        quiet: z of all of its texts, by text.
    """

    backbone: redhost.Backbone
    reference: redhost.BackboneRef
    norm: redhost.LayerNorm
    background: tuple[redhost.BackgroundRow, ...]
    background_h: Tensor
    quiet: dict[str, Tensor]

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return z ``(N, D)`` of background texts."""
        return torch.stack([self.quiet[text] for text in texts])


def open_shop(folder: Path) -> Shop:
    """Open a backbone package's folder for the authors of the family."""
    manifest, backbone, background = redhost.open_backbone(folder)
    norm = redhost.LayerNorm(width=backbone.width, eps=backbone.eps)
    texts = sorted({row.text for row in background})
    h = backbone.encode(texts)
    return Shop(
        backbone=backbone,
        reference=redhost.BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
        norm=norm,
        background=background,
        background_h=h[::EVERY],
        quiet=dict(zip(texts, norm(h), strict=True)),
    )


def sites(work: Path, count: int) -> list[Path]:
    """Return the folders in which the first `count` packages of the family lie."""
    return [work / f"site-{first}-{end}" for first, end in SLICES if first < count]


def install(work: Path, backbone: Path, *, count: int) -> list[Path]:
    """Install the first experts of the family; return the folders to put on the path.

    Args:
        work: Where they are kept; what is there already is not made again.
        backbone: The folder of the backbone's package.
        count: How many, one of the ends of `SLICES`.
    """
    missing = [
        (work / f"site-{first}-{end}", Domain(place))
        for first, end in SLICES
        if first < count
        for place in range(first, min(end, count))
        if not _record(work / f"site-{first}-{end}", Domain(place)).exists()
    ]
    if missing:
        shop, bar = open_shop(backbone), Bar("experts", total=len(missing))
        for start in range(0, len(missing), CHUNK):
            _make(missing[start : start + CHUNK], shop)
            bar.update(min(start + CHUNK, len(missing)))
    return sites(work, count)


def _make(jobs: Sequence[tuple[Path, Domain]], shop: Shop) -> None:
    """Train and install some experts; their texts are encoded together."""
    rows = [domain.rows() for _, domain in jobs]
    texts = [r.text for found in rows for role in found.values() for r in role]
    features = dict(zip(texts, shop.backbone.encode(texts), strict=True))
    for (site, domain), found in zip(jobs, rows, strict=True):
        h = {role: torch.stack([features[r.text] for r in rs]) for role, rs in found.items()}
        package = site / domain.module
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("raise AssertionError('data is never imported')\n")
        _save(package, domain, found, h, shop)
        points = {"redhost.experts": f"{domain.id} = {domain.module}"}
        info = _record(site, domain).parent
        if info.exists():  # a stopped run left it without its RECORD
            for file in info.iterdir():
                file.unlink()
            info.rmdir()
        Environment(site).write_info(domain.module.replace("_", "-"), "1.0", domain.module, points)


def _save(
    package: Path,
    domain: Domain,
    rows: dict[Role, list[redhost.Row]],
    h: dict[Role, Tensor],
    shop: Shop,
) -> None:
    """Train one expert alone and write what its package carries."""
    expert = redhost.train_expert(
        redhost.Rows(h=h["train"], answers=[r.label for r in rows["train"]]),
        norm=shop.norm,
        classifier=shop.backbone.classifier,
        labels=shop.backbone.labels,
        domain_labels=domain.labels,
        settings=domain.settings,
        background=shop.background_h,
    ).expert
    card = [
        redhost.CardRow(text=r.text, label=r.label, part=part)
        for part in ("fit", "gate")
        for r in rows[part]
    ]
    redhost.save_expert(
        package,
        expert=expert,
        expert_id=domain.id,
        backbone=shop.reference,
        width=shop.backbone.width,
        domain=f"'{rows['test'][0].text}': the sum's last digit, halved",
        card=redhost.texts_card(card),
        canary=shop.norm(h["train"][:CANARIES]),
        off_domain=redhost.measure_off_domain(
            expert, domain.id, shop.backbone, shop.background, read=shop.read
        ),
        training=redhost.Training(
            data=_digest(rows["train"]),
            seed=domain.place,
            epochs=domain.settings.epochs,
            metrics={},
            versions=redhost.library_versions(),
        ),
    )


def _record(site: Path, domain: Domain) -> Path:
    return site / f"{domain.module}-1.0.dist-info" / "RECORD"


def _digest(rows: Sequence[redhost.Row]) -> str:
    return hashlib.sha256("\n".join(f"{r.text}\t{r.label}" for r in rows).encode()).hexdigest()
