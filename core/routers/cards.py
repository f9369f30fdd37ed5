"""Routing cards: the data in installed packages from which any host can train a router."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from torch import Tensor

from ...registry.errors import CardError, UsageError
from ...registry.package.manifest import ExpertManifest
from ...registry.package.rules import MAX_ROWS
from ..bus.layout import FeatureLayout
from ..bus.task import CLASSIFICATION, Task
from ..types import BackgroundRow, CardRow, Row, parse_rows
from .base import ColumnData
from .domain_statistics import Statistics, within_covariance

if TYPE_CHECKING:
    from ..backbones.backbone import Backbone

FAR = 8.0
"""Largest distance of a card's rows from its sums, in standard deviations; see `distance`."""

BACKED = 16
"""The most rows that a card's sums may count for each row it ships, unless its gate is full. An
author's gate alone is an eighth of the rows (`split_rows`); validation rows may be added."""

PLAIN = FeatureLayout(width=0)
"""h alone."""

DRAWN = 256
"""Rows drawn from a statistics card's Gaussians for a router that needs rows."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A parsed card: it holds exactly one of rows, vectors or statistics, or nothing.

    Attributes:
        column: The expert's id.
        kind: ``texts``, ``vectors``, ``statistics`` or ``none``.
        rows: For ``texts``.
        z: For ``vectors``: the fit rows ``(N, D)``.
        labels: For ``vectors``: the labels of the fit rows.
        statistics: For ``statistics``, and for ``vectors`` cards that include them.
        gate_h: For ``vectors``: features of the gate rows, ``(G, D)``.
        gate_labels: For ``vectors``: the labels of the gate rows.
        task: What the labels are: classes, or numbers.
        segment: What the expert reads in addition to z (`Expert.card_segment`), by part.
    """

    column: str
    kind: str
    rows: tuple[CardRow, ...] = ()
    z: Tensor | None = None
    labels: tuple[str, ...] = ()
    statistics: Statistics | None = None
    gate_h: Tensor | None = None
    gate_labels: tuple[str, ...] = ()
    task: Task = CLASSIFICATION
    segment: Mapping[str, Tensor] = field(default_factory=dict)


def read_card(
    manifest: ExpertManifest,
    files: Mapping[str, bytes],
    *,
    task: Task = CLASSIFICATION,
    segment: Mapping[str, Tensor] | None = None,
) -> Card:
    """Parse an expert's card from bytes that were checked against its manifest.

    Args:
        manifest: The manifest.
        files: The package's files.
        task: What the labels are.
        segment: What the expert reads in addition to z (`Expert.card_segment`), by part.

    Raises:
        CardError: If the card is not as the manifest describes it.
    """
    ref = manifest.card
    if ref.kind == "none" or ref.file is None:
        return Card(column=manifest.id, kind="none")
    data = files[ref.file]
    if ref.kind == "texts":
        return _texts(manifest, data, task)
    tensors = safetensors.torch.load(data)
    try:
        if ref.kind == "vectors":
            return replace(_vectors(manifest, tensors, task), segment=segment or {})
        statistics = _statistics(manifest, tensors)
    except (KeyError, IndexError) as e:
        raise CardError(f"card of expert {manifest.id!r}", found=f"no tensor {e}") from e
    return Card(column=manifest.id, kind="statistics", statistics=statistics)


def column_data(
    card: Card,
    *,
    encode_z: Callable[[Sequence[str]], Tensor],
    seed: int,
    layout: FeatureLayout = PLAIN,
) -> ColumnData:
    """Turn a card into training data for a router.

    Args:
        card: The card.
        encode_z: Texts → z ``(N, D)``, or z̃.
        seed: The seed of rows drawn from statistics.
        layout: The segments of z̃.

    Raises:
        CardError: If the card has no training data.
    """
    if card.kind == "statistics" and card.statistics is not None:
        generator = torch.Generator().manual_seed(_derived(seed, card.column))
        z, _ = card.statistics.sample(rows=DRAWN, generator=generator)
        return ColumnData(column=card.column, z=z, statistics=card.statistics)
    if card.kind == "texts":
        fit = [r for r in card.rows if r.part == "fit"]
        z, labels = encode_z([r.text for r in fit]), tuple(r.label for r in fit)
    elif card.z is not None:
        z, labels = layout.fill(card.z, card.column, card.segment.get("fit")), card.labels
    else:
        raise CardError(
            f"expert {card.column!r} ships no routing card",
            expected="texts, vectors or statistics",
            found="none",
            hint="Ask its author for a card, or disable it.",
        )
    if not len(z):
        raise CardError(f"card of expert {card.column!r} has no fit rows")
    groups = card.task.head.groups(labels if len(labels) == len(z) else [""] * len(z))
    statistics = card.statistics or Statistics.of_rows(layout.router_input(z), groups)
    row_labels = tuple(groups) if {*groups} <= {*statistics.labels} else ()
    return ColumnData(column=card.column, z=z, statistics=statistics, labels=row_labels)


def background_texts(rows: Sequence[BackgroundRow], composed: Collection[str]) -> list[str]:
    """Return the background texts that lie in no composed expert's domain."""
    ids = frozenset(composed)
    return [r.text for r in rows if r.domain is None or r.domain not in ids]


def background_data(
    rows: Sequence[BackgroundRow],
    *,
    column: str,
    composed: Sequence[str],
    encode_z: Callable[[Sequence[str]], Tensor],
    layout: FeatureLayout = PLAIN,
) -> ColumnData | None:
    """Return the backbone column's training data: texts outside every composed domain."""
    texts = background_texts(rows, composed)
    if not texts:
        return None
    z = encode_z(texts)
    labels = ("",) * len(z)
    statistics = Statistics.of_rows(layout.router_input(z), labels)
    return ColumnData(column=column, z=z, statistics=statistics, labels=labels)


def gate_rows(
    cards: Sequence[Card],
    *,
    encode: Callable[[Sequence[str]], Tensor],
    backbone: Backbone | None = None,
    vectors: bool = True,
) -> tuple[Tensor, list[Row]]:
    """Return the features ``(G, D)`` and labels of all gate rows available to a host.

    Args:
        cards: The cards.
        encode: Texts → h ``(N, D)``.
        backbone: What `encode` uses: it has the layout of h̃, and what a row is. None if a row is a
            text, and has only h.
        vectors: Whether that is the backbone that the cards' vectors come from.
    """
    texts = [
        Row(text=r.text, label=r.label, domain=c.column)
        for c in cards
        for r in c.rows
        if r.part == "gate"
    ]
    parts = [encode([r.text for r in texts])]
    rows = backbone.unit_rows(texts) if backbone else list(texts)
    layout = (backbone and backbone.layout) or PLAIN
    units = {c.task.unit for c in cards if c.rows}
    chosen = units.pop().gate_places([r.label for r in rows]) if units else None
    if chosen is not None:
        parts, rows = [parts[0][chosen]], [rows[n] for n in chosen.tolist()]
    for card in cards:
        if vectors and card.gate_h is not None:
            # Other segments after h are unknown.
            parts.append(layout.fill(card.gate_h, card.column, card.segment.get("gate")))
            rows += [Row(text="", label=y, domain=card.column) for y in card.gate_labels]
    return torch.cat(parts), rows


def _texts(manifest: ExpertManifest, data: bytes, task: Task) -> Card:
    try:
        rows = tuple(parse_rows(data, CardRow, source=f"card of expert {manifest.id!r}"))
        for part, stated in (("fit", manifest.card.fit), ("gate", manifest.card.gate)):
            if (count := sum(r.part == part for r in rows)) != stated:
                problem = f"card of expert {manifest.id!r}, {part} rows"
                raise CardError(problem, expected=str(stated), found=str(count))
        strange = task.head.labels_in([r.label for r in rows]) - set(manifest.labels)
    except UsageError as e:  # the mistake is the author's, not the host's
        raise CardError(e.problem, expected=e.expected, found=e.found, hint=e.hint) from e
    if strange:
        raise CardError(
            f"card of expert {manifest.id!r}",
            expected="labels of its manifest",
            found=", ".join(sorted(strange)[:3]),
        )
    return Card(column=manifest.id, kind="texts", rows=rows, task=task)


def _statistics(manifest: ExpertManifest, tensors: Mapping[str, Tensor]) -> Statistics:
    counts, sums, rows = (tensors[name].double() for name in ("counts", "sums", "scatter"))
    scatter = sums.new_zeros(2 * sums.shape[1:])
    scatter[torch.ones_like(scatter, dtype=torch.bool).triu()] = rows
    statistics = Statistics(
        labels=manifest.labels, counts=counts, sums=sums, scatter=scatter + scatter.triu(1).T
    )
    if int(torch.linalg.cholesky_ex(within_covariance([statistics]))[1]):
        raise CardError(
            f"card of expert {manifest.id!r}",
            expected="sums of rows, which have a covariance",
            found="sums of none",
            hint="Ask its author for a new build.",
        )
    return statistics


def _vectors(manifest: ExpertManifest, tensors: Mapping[str, Tensor], task: Task) -> Card:
    """Read a vectors card; h = z · scale + shift for the gate rows."""
    z, gate_z = _wide(tensors, "fit_z"), _wide(tensors, "gate_z")
    # The registry has checked that every index has a label.
    labels, gate_labels = (
        task.head.answers(tensors[name], manifest.labels) for name in ("fit_label", "gate_label")
    )
    statistics = _statistics(manifest, tensors) if "counts" in tensors else None
    if statistics is not None:
        _refuse_unbacked_sums(manifest, statistics)
        _refuse_foreign_sums(
            manifest.id,
            statistics,
            torch.cat([z, gate_z]),
            task.head.groups((*labels, *gate_labels)),
        )
    return Card(
        column=manifest.id,
        kind="vectors",
        z=z,
        labels=labels,
        gate_h=gate_z * _wide(tensors, "gate_scale") + _wide(tensors, "gate_shift"),
        gate_labels=gate_labels,
        statistics=statistics,
        task=task,
    )


def _refuse_foreign_sums(
    expert_id: str, statistics: Statistics, z: Tensor, labels: Sequence[str]
) -> None:
    """Refuse a card whose rows ``(N, D)`` are unlike the rows in its sums.

    For numbers, which are not classes, all rows count as one class.
    """
    far = statistics.distance(z, labels)
    if not far <= FAR:
        raise CardError(
            f"card of expert {expert_id!r}",
            expected=f"sums of rows like those it shows: means within {FAR:g} standard deviations",
            found=f"means {far:.3g} standard deviations off",
            hint="Ask its author for a new build.",
        )


def _refuse_unbacked_sums(manifest: ExpertManifest, statistics: Statistics) -> None:
    """Refuse sums of many more rows than the card ships, since row counts act as weights."""
    count, card = int(statistics.counts.sum()), manifest.card
    most = BACKED * (card.fit + card.gate)
    if card.gate < MAX_ROWS and count > most:
        raise CardError(
            f"card of expert {manifest.id!r}",
            expected=f"{MAX_ROWS} gate rows, or sums of at most {BACKED} times as many rows as it "
            f"shows: {most}",
            found=f"sums of {count}",
            hint="Ask its author for a build that shows more of its rows.",
        )


def _wide(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor in the precision of the bus, independent of its precision on disk."""
    return tensors[name].to(torch.float32)


def _derived(seed: int, name: str) -> int:
    """Return a separate seed for each column, independent of the order of the columns."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:7], "big")
