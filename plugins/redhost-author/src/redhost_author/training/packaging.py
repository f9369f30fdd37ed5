"""Write packages: an expert's or a backbone's files, the routing card, and the manifest last.

`ExpertDraft` and `CardFile` contain the parts to write; digests are computed while writing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from msgspec import UNSET, Struct, UnsetType
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.pooling import Dense
from redhost.core.bus.experts import ClassifierExpert, Expert, Linear, LowRank
from redhost.core.bus.task import CLASSIFICATION, Task
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.types import CardRow, write_rows
from redhost.registry.atomic import read, write_atomic
from redhost.registry.errors import CardError, UsageError
from redhost.registry.package.discover import MANIFESTS
from redhost.registry.package.forms import FORMS
from redhost.registry.package.manifest import (
    BUS_RANGE,
    Activation,
    BackboneManifest,
    BackboneRef,
    Base,
    CanaryRef,
    CardKind,
    CardRef,
    DenseRef,
    ExpertManifest,
    FileRef,
    Noise,
    Norm,
    Reads,
    RowsRef,
    Training,
    Writes,
    dumps,
    parse_backbone,
    parse_expert,
    parts_of,
)
from redhost.registry.package.safetensors_check import sha256_hex

from ..project import check_id
from .private_sums import fresh_generator, private_sums

TOLERANCE = 1e-3
"""Largest allowed difference of a recomputed Δ from the canary's; smaller where Δ is small."""

FEWEST_ROWS = 5
"""Fewest rows of a label in a statistics card. The sum of one row is that row, and from a sum of a
few rows, anyone who knows all but one can compute the last."""


@dataclass(frozen=True, kw_only=True)
class CardFile:
    """A card's kind, bytes, numbers of rows and noise, for the manifest; `none` means no card."""

    kind: CardKind
    name: str | None = None
    data: bytes | None = None
    fit: int = 0
    gate: int = 0
    noise: Noise | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True, eq=False)
class FormDraft:
    """What the package of an expert of a plugin's form has in place of its tensors.

    Attributes:
        files: Its files by name, written unchanged.
        fields: The fields of its manifest that depend on the form: ``form``, ``rank``,
            ``activation``, ``weights``, and the form's own.
        tokens: Token ids ``(N, T)`` of which the canary is computed; None if it is not.
    """

    files: Mapping[str, bytes]
    fields: Mapping[str, Any]
    tokens: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertDraft:
    """The content of an expert's package: its parts, and its manifest without their digests.

    Attributes:
        expert: The trained expert, which has form, rank, space, labels and temperature.
        card: The card, of rows it never trained on, or answers as if not.
        canary: Inputs of the expert to include in the canary, ``(N, D)``.
        id: Its stable id.
        backbone: The backbone it was trained on.
        domain: The slice of inputs it was trained on, in a sentence.
        training: How it was trained.
        reads_tap: ``final``, or the block it reads.
        writes_tap: ``final``, or the block it writes to.
        vocabulary: The digest of the tokenizer whose tokens it predicts, for text generation.
        off_domain: Measured ‖W_c Δ‖ on the backbone's background card.
        license: The licence of the weights.
        form: What it has in place of its tensors, for a plugin's form.
        question: The question it answers, if that has a name.
    """

    expert: Expert
    card: CardFile
    canary: Tensor
    id: str
    backbone: BackboneRef
    domain: str
    training: Training
    reads_tap: str = "final"
    writes_tap: str = "final"
    vocabulary: str | None = None
    off_domain: float | None = None
    license: str = "Apache-2.0"
    form: FormDraft | None = None
    question: str | None = None


def save_expert(folder: Path, draft: ExpertDraft) -> ExpertManifest:
    """Write expert.json, the weights, the card and the canary into a package's folder.

    Raises:
        UsageError: If the expert's form comes from a plugin, and the draft does not describe it.
    """
    expert, card, package = draft.expert, draft.card, _Files()
    fields = _form_fields(draft, package)
    canary = _canary(draft, package)
    shown = package.add(card.name, card.data) if card.name and card.data is not None else None
    causal = draft.vocabulary is not None
    manifest = ExpertManifest(
        id=draft.id,
        bus_api=BUS_RANGE,
        backbone=draft.backbone,
        reads=Reads(
            tap=draft.reads_tap, width=draft.canary.shape[-1], causal=True if causal else UNSET
        ),
        writes=Writes(
            space=expert.space, tap=draft.writes_tap, vocabulary=draft.vocabulary or UNSET
        ),
        off_domain=draft.off_domain,
        temperature=expert.temperature,
        thresholds=expert.thresholds or UNSET,
        span_rules=expert.rules or UNSET,
        labels=expert.labels,
        domain=draft.domain,
        card=CardRef(
            kind=card.kind,
            file=None if shown is None else shown.file,
            sha256=None if shown is None else shown.sha256,
            fit=card.fit,
            gate=card.gate,
            noise=card.noise,
        ),
        canary=canary,
        training=draft.training,
        license=draft.license,
        question=draft.question or UNSET,
        **fields,
    )
    package.write(folder, "expert.json", manifest)
    return manifest


def _canary(draft: ExpertDraft, package: _Files) -> CanaryRef:
    """Add the canary; its tolerance is small compared with max |Δ|."""
    expert, z = draft.expert, draft.canary
    tokens = draft.form.tokens if draft.form else None
    data = make_canary(expert, z, tokens=tokens)
    with torch.no_grad():
        loudest = float(expert(z).abs().max())
    file, tolerance = package.add("canary.safetensors", data), min(TOLERANCE, loudest / 4)
    return CanaryRef(file=file.file, sha256=file.sha256, tolerance=tolerance or TOLERANCE)


def _form_fields(draft: ExpertDraft, package: _Files) -> dict[str, Any]:
    """Add an expert's tensors, or the files of its form; return the manifest's fields about it."""
    if draft.form is not None:
        package.update(draft.form.files)
        return dict(draft.form.fields)
    form, rank, activation = _form(draft.expert)
    weights = package.tensors("expert.safetensors", draft.expert.state_dict())
    return {"form": form, "rank": rank, "activation": activation, "weights": weights}


def _form(expert: Expert) -> tuple[str, int, Activation]:
    """Return the form that matches an expert's tensors, its rank and its σ."""
    names = expert.state_dict().keys()
    form = next((n for n, f in FORMS.items() if f.letters(expert.space).keys() == names), None)
    if form is not None and isinstance(expert, Linear):
        return form, 0, "identity"
    if form is not None and isinstance(expert, (LowRank, ClassifierExpert)):
        return form, expert.U.shape[0], expert.activation  # type: ignore[return-value]
    raise UsageError(f"{type(expert).__name__} is not a form that can be saved here")


def save_backbone(
    folder: Path,
    backbone: Backbone,
    *,
    base: Base | Mapping[str, bytes],
    delta: Mapping[str, Tensor] | None = None,
    background: bytes | None = None,
    evaluation: bytes | None = None,
    training: Training | None = None,
    license: str = "Apache-2.0",  # noqa: A002  (the manifest's word)
) -> BackboneManifest:
    """Write backbone.json and its files into a folder.

    Args:
        folder: The package's folder.
        backbone: The finished backbone; its name becomes the package's id.
        base: The source of the trunk, or the files of its model by name, which are included.
        delta: The tensors that differ from the base.
        background: The background card, JSON lines.
        evaluation: The held-out rows, JSON lines.
        training: How it was trained.
        license: The licence of the weights.

    Raises:
        UsageError: If the backbone's name cannot be an id.
    """
    check_id(backbone.name)  # one that was only loaded has its source's name
    package = _Files({} if isinstance(base, Base) else base)
    digests = {name: sha256_hex(data) for name, data in sorted(package.items())}
    # A language-model head is part of the base.
    head = backbone.trunk.head  # W_c of a generating backbone
    classifier = backbone.classifier if head is None else None
    manifest = BackboneManifest(
        id=backbone.name,
        bus_api=BUS_RANGE,
        base=base if isinstance(base, Base) else Base(kind="carried", files=digests),
        delta=package.tensors("delta.safetensors", delta) if delta else None,
        classifier=None
        if classifier is None
        else package.tensors("classifier.safetensors", {"weight": classifier}),
        task=backbone.task.name,
        resolution=backbone.task.head.resolution,
        labels=backbone.labels,
        width=backbone.width,
        pooling=backbone.trunk.pooling.mode,
        dense=tuple(package.dense(backbone.trunk.pooling.dense)) or UNSET,
        features=backbone.trunk.features or UNSET,
        max_tokens=backbone.trunk.max_tokens,
        norm=Norm(eps=backbone.eps),
        tokenizer=backbone.tokenizer_digest(),
        fingerprint=backbone.fingerprint(),
        background=package.rows("background.jsonl", background),
        evaluation=package.rows("evaluation.jsonl", evaluation),
        training=training,
        license=license,
    )
    package.write(folder, "backbone.json", manifest)
    return manifest


class _Files(dict[str, bytes]):
    """A package's files by name; adding one returns its reference for the manifest."""

    def add(self, name: str, data: bytes) -> FileRef:
        """Add a file."""
        self[name] = data
        return FileRef(file=name, sha256=sha256_hex(data))

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> FileRef:
        """Add a safetensors file in float32."""
        plain = {k: v.detach().to(torch.float32).contiguous() for k, v in tensors.items()}
        return self.add(name, safetensors.torch.save(plain))

    def dense(self, layers: Sequence[Dense]) -> Iterator[DenseRef]:
        """Add dense layers, a file each."""
        for n, layer in enumerate(layers):
            ref = self.tensors(f"dense-{n}.safetensors", layer.tensors)
            yield DenseRef(file=ref.file, sha256=ref.sha256, activation=layer.activation)

    def rows(self, name: str, data: bytes | None) -> RowsRef | None:
        """Add a JSON-lines file, if there is one."""
        if data is None:
            return None
        file, count = self.add(name, data), sum(1 for x in data.splitlines() if x)
        return RowsRef(file=file.file, sha256=file.sha256, rows=count)

    def write(self, folder: Path, name: str, manifest: Struct) -> None:
        """Write all files, and then their manifest."""
        write_package(folder, {**self, name: dumps(manifest)}, name)


def write_package(folder: Path, files: Mapping[str, bytes], manifest: str) -> None:
    """Write a package's files, the manifest last; remove files that only the old manifest names.

    Everything in the folder is published, so a card that was replaced must not remain.

    Args:
        folder: The package's folder, created if missing; an author's own files are kept.
        files: Its files by name, including the manifest.
        manifest: The manifest's name.

    Raises:
        StoreError: If the disk is full or failing.
    """
    before = _named_in(folder, manifest)
    for name in sorted(files, key=lambda n: n == manifest):
        write_atomic(folder / name, files[name])
    for name in before - {*files}:
        (folder / name).unlink(missing_ok=True)


def _named_in(folder: Path, manifest: str) -> set[str]:
    """Return the files that the manifest in a folder names; none if it cannot be read."""
    parse = parse_expert if manifest == MANIFESTS["expert"] else parse_backbone
    named: ExpertManifest | BackboneManifest | None = parse(read(folder / manifest) or b"").value
    return set() if named is None else {part.file for part in parts_of(named)}


def texts_card(rows: Sequence[CardRow]) -> CardFile:
    """Return a card of labelled texts, in the clear."""
    return CardFile(
        kind="texts",
        name="card.jsonl",
        data=write_rows(rows),
        fit=sum(r.part == "fit" for r in rows),
        gate=sum(r.part == "gate" for r in rows),
    )


def vectors_card(
    *,
    fit_z: Tensor,
    fit_labels: Sequence[str],
    gate_h: Tensor,
    gate_labels: Sequence[str],
    labels: Sequence[str],
    eps: float,
    statistics: Statistics | None = None,
    task: Task = CLASSIFICATION,
) -> CardFile:
    """Return a card of bus vectors: z, and for gate rows the values needed to recover h.

    Args:
        fit_z: Bus vectors ``(F, D)``.
        fit_labels: Their labels.
        gate_h: Features ``(G, D)`` of the gate rows.
        gate_labels: Their labels.
        labels: The manifest's labels; rows refer to them by index.
        eps: ε of the bus norm.
        statistics: Sums over the author's rows without gate rows, which cover more than fit rows.
        task: The task; for numbers, rows have the number in place of the label's index.
    """
    targets = task.head.targets
    shift = gate_h.mean(-1, keepdim=True)
    variance = gate_h.var(-1, unbiased=False, keepdim=True) if len(gate_h) else shift
    scale = (variance + eps).sqrt()
    tensors = {
        "fit_z": fit_z.contiguous(),
        "fit_label": targets(fit_labels, labels),
        "gate_z": ((gate_h - shift) / scale).contiguous(),
        "gate_label": targets(gate_labels, labels),
        "gate_shift": shift.contiguous(),
        "gate_scale": scale.contiguous(),
    }
    if statistics is not None:
        tensors |= _sums(statistics, labels)
    return CardFile(
        kind="vectors",
        name="card.safetensors",
        data=safetensors.torch.save(tensors),
        fit=len(fit_z),
        gate=len(gate_h),
    )


def statistics_card(
    z: Tensor,
    row_labels: Sequence[str],
    *,
    labels: Sequence[str],
    noise: Noise | None = None,
    public: Tensor | None = None,
) -> CardFile:
    """Return a card of sums, which contains no single row.

    Args:
        z: Bus vectors ``(N, D)``.
        row_labels: Their labels.
        labels: The manifest's labels, in order.
        noise: The privacy parameters of the sums; None for exact sums.
        public: With noise: bus vectors ``(P, D)`` of public texts, assumed to vary as rows do.

    Raises:
        CardError: If a label has fewer than `FEWEST_ROWS` rows.
    """
    counts = Counter(row_labels)
    few = sorted(y for y in labels if counts[y] < FEWEST_ROWS)
    if few:
        raise CardError(
            "a statistics card would give single rows away",
            expected=f"at least {FEWEST_ROWS} rows of each label",
            found=f"fewer of {', '.join(few[:5])}",
            hint="Bring more rows of them, or choose --card texts.",
        )
    if noise is None:
        statistics = Statistics.of_rows(z, row_labels)
    else:
        statistics = private_sums(z, row_labels, noise, public=public, generator=fresh_generator())
    return CardFile(
        kind="statistics",
        name="card.safetensors",
        data=safetensors.torch.save(_sums(statistics, labels)),
        fit=min(len(z), 256),
        noise=noise or UNSET,
    )


def _sums(statistics: Statistics, labels: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors of statistics, with labels in the manifest's order.

    Of the scatter, which is symmetric, the rows of the upper triangle, ``(D (D + 1) / 2,)``.
    """
    place = torch.tensor([statistics.labels.index(y) for y in labels])
    upper = torch.ones_like(statistics.scatter, dtype=torch.bool).triu()
    return {
        "counts": statistics.counts[place].to(torch.int64),
        "sums": statistics.sums[place].to(torch.float32),
        "scatter": statistics.scatter[upper].to(torch.float32),
    }


def make_canary(expert: Expert, z: Tensor, *, tokens: Tensor | None = None) -> bytes:
    """Write a canary file.

    Args:
        expert: The finished expert.
        z: The bus vectors to store, ``(N, D)``.
        tokens: The tokens ``(N, T)`` that z comes from, for an expert that changes h.
    """
    with torch.inference_mode():
        delta = expert(z).clone()
    tensors = {"z": z, "delta": delta, **({} if tokens is None else {"tokens": tokens})}
    return safetensors.torch.save({n: t.contiguous() for n, t in tensors.items()})
