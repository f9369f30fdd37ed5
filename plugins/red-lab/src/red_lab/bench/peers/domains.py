"""Six domains of sums on the tiny backbone: the five ranges, the middle one cut in two.

Five are there, the sixth is the newcomer. Its experts are trained like those that ship.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

import redhost
from red_lab.arithmetic import RANGES, Role, Row, Split, pairs_with, range_of, rows
from red_lab.hotswap_measure import shipped
from red_lab.ranges import EXPERT, Bench, digest_of, open_bench

__all__ = ["CUT", "DOMAINS", "NEWCOMER", "build_experts", "domain_of", "held_out", "rows_of"]

CUT, NEWCOMER = "range3", "range6"
MIDDLE = 50
"""The newcomer takes the sums above it from the range that is cut."""

DOMAINS = (*(name for name, _, _ in RANGES), NEWCOMER)
SPLIT = Split.numbered(0)


def domain_of(label: str) -> str:
    """Return the domain of a sum."""
    name = range_of(int(label))
    return NEWCOMER if name == CUT and int(label) > MIDDLE else name


def rows_of(domain: str, role: Role) -> list[Row]:
    """Return a domain's rows of one role: train, fit or gate."""
    return [r for r in _named(rows(pairs_with(SPLIT, role))) if r.domain == domain]


def held_out() -> list[Row]:
    """Return the rows that nothing has learnt from."""
    return _named(rows(SPLIT.test_pairs()))


def build_experts(work: Path) -> Mapping[str, Path]:
    """Train what does not ship: both halves of the range that is cut, one of them twice.

    Args:
        work: Where the packages stay; what is there is not trained again.

    Returns:
        The package folders of ``range3``, ``range6`` and ``other``, another build of range3.
    """
    folders = {}
    bench: Bench | None = None
    for name, domain, seed in ((CUT, CUT, 0), (NEWCOMER, NEWCOMER, 0), ("other", CUT, 1)):
        project = work / "experts" / name
        folder = project / "src" / f"red_expert_{domain}"
        if not (folder / "expert.json").exists():
            bench = bench or open_bench(shipped()[0], SPLIT)
            folder = _build(bench, domain, project, seed=seed)
        folders[name] = folder
    return folders


def _build(bench: Bench, domain: str, project: Path, *, seed: int) -> Path:
    """Train one expert alone and write its package; the manifest is written last."""
    data, settings = rows_of(domain, "train"), dataclasses.replace(EXPERT, seed=seed)
    labels = bench.backbone.labels
    others = [r.text for r in bench.background if _background_domain(r) != domain]
    expert = redhost.train_expert(
        redhost.Rows(h=bench.features([r.text for r in data]), answers=[r.label for r in data]),
        norm=bench.norm,
        classifier=bench.classifier,
        labels=labels,
        domain_labels=[y for y in labels if domain_of(y) == domain],
        settings=settings,
        background=bench.features(others),
    ).expert
    card = [
        redhost.CardRow(text=r.text, label=r.label, part=part)
        for part in ("fit", "gate")
        for r in rows_of(domain, part)
    ]
    folder = redhost.write_project(
        project, kind="expert", package_id=domain, summary="an expert of the bench"
    )
    redhost.save_expert(
        folder,
        expert=expert,
        expert_id=domain,
        backbone=bench.reference,
        width=bench.backbone.width,
        domain="sums of the bench",
        card=redhost.texts_card(card),
        canary=bench.norm(bench.features([r.text for r in data[:8]])),
        off_domain=redhost.measure_off_domain(
            expert,
            domain,
            bench.backbone,
            bench.background,
            read=lambda texts: bench.norm(bench.features(texts)),
        ),
        training=redhost.Training(
            data=digest_of(data),
            seed=seed,
            epochs=settings.epochs,
            metrics={},
            versions=redhost.library_versions(),
        ),
    )
    return folder


def _background_domain(row: redhost.BackgroundRow) -> str | None:
    """Return the domain of a background text, which knows the uncut ranges only."""
    if row.domain != CUT:
        return row.domain
    a, b = (int(word.strip("?")) for word in row.text.split() if word.strip("?").isdigit())
    return domain_of(str(a + b))


def _named(found: Iterable[Row]) -> list[Row]:
    return [r._replace(domain=domain_of(r.label)) for r in found]
