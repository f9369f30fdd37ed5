"""Write what a package carries: an expert's or a backbone's files with their manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import safetensors.torch
import torch
from msgspec import UNSET
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.forms import FORMS
from ...registry.integrity import sha256_hex
from ...registry.manifest import (
    BackboneManifest,
    BackboneRef,
    Base,
    CanaryRef,
    CardRef,
    ExpertManifest,
    FileRef,
    Norm,
    Reads,
    RowsRef,
    Training,
    Writes,
    dumps,
)
from ..backbones.backbone import Backbone, tokenizer_digest
from ..canary import make_canary
from ..experts import Expert, Linear, LowRank, OwnHead
from .card_files import CardFile

__all__ = ["save_backbone", "save_expert"]

BUS_RANGE = ">=1,<2"
TOLERANCE = 1e-3


def save_expert(
    folder: Path,
    *,
    expert: Expert,
    expert_id: str,
    backbone: BackboneRef,
    width: int,
    domain: str,
    card: CardFile,
    canary: Tensor,
    training: Training,
    off_domain: float | None = None,
    reads: str = "final",
    writes: str = "final",
    vocabulary: str | None = None,
    license: str = "Apache-2.0",  # noqa: A002  (the manifest's word)
) -> ExpertManifest:
    """Write expert.json, the weights, the card and the canary into a folder.

    Args:
        folder: The package's folder.
        expert: The trained expert.
        expert_id: Its stable id.
        backbone: The backbone it was trained on.
        width: D.
        domain: The slice of inputs it knows, in a sentence.
        card: Of rows the expert never trained on.
        canary: Bus vectors to remember, ``(N, D)``.
        training: How it was trained.
        off_domain: Measured ‖W_c Δ‖ on the backbone's background card.
        reads: ``final``, or the block it reads.
        writes: ``final``, or the block it writes to.
        vocabulary: The digest of the tokenizer whose tokens it tells, where it is causal.
        license: Of the weights.
    """
    files = {
        "expert.safetensors": safetensors.torch.save(_contiguous(expert.state_dict())),
        "canary.safetensors": make_canary(expert, canary),
    }
    if card.name is not None and card.data is not None:
        files[card.name] = card.data
    manifest = ExpertManifest(
        id=expert_id,
        bus_api=BUS_RANGE,
        backbone=backbone,
        form=_form(expert),
        reads=Reads(tap=reads, width=width, causal=UNSET if vocabulary is None else True),
        writes=Writes(
            space=expert.space, tap=writes, vocabulary=UNSET if vocabulary is None else vocabulary
        ),
        rank=expert.U.shape[0] if isinstance(expert, (LowRank, OwnHead)) else 0,
        activation="identity" if isinstance(expert, Linear) else _activation(expert),
        off_domain=off_domain,
        temperature=expert.temperature,
        labels=expert.labels,
        domain=domain,
        weights=FileRef(file="expert.safetensors", sha256=sha256_hex(files["expert.safetensors"])),
        card=_card_ref(card),
        canary=CanaryRef(
            file="canary.safetensors",
            sha256=sha256_hex(files["canary.safetensors"]),
            tolerance=TOLERANCE,
        ),
        training=training,
        license=license,
    )
    _write(folder, {**files, "expert.json": dumps(manifest)})
    return manifest


def save_backbone(
    folder: Path,
    *,
    backbone: Backbone,
    backbone_id: str,
    base: Base,
    files: Mapping[str, bytes],
    delta: Mapping[str, Tensor] | None = None,
    background: bytes | None = None,
    evaluation: bytes | None = None,
    training: Training | None = None,
    license: str = "Apache-2.0",  # noqa: A002  (the manifest's word)
) -> BackboneManifest:
    """Write backbone.json and its files into a folder.

    Args:
        folder: The package's folder.
        backbone: The finished backbone.
        backbone_id: Its id.
        base: Where the trunk comes from; for ``carried``, leave `files` of it empty.
        files: A carried base's files by name.
        delta: The tensors that differ from the base.
        background: The background card, JSON lines.
        evaluation: The held-out rows, JSON lines.
        training: How it was trained.
        license: Of the weights.
    """
    out = dict(files)
    if base.kind == "carried":
        base = Base(
            kind="carried", files={n: sha256_hex(data) for n, data in sorted(files.items())}
        )
    parts: dict[str, FileRef | RowsRef | None] = {
        "delta": _tensors_ref(out, "delta.safetensors", delta),
        "classifier": _tensors_ref(
            out,
            "classifier.safetensors",
            # A language-model head is the base's own.
            None
            if backbone.classifier is None or backbone.generates
            else {"weight": backbone.classifier},
        ),
        "background": _rows_ref(out, "background.jsonl", background),
        "evaluation": _rows_ref(out, "evaluation.jsonl", evaluation),
    }
    manifest = BackboneManifest(
        id=backbone_id,
        bus_api=BUS_RANGE,
        base=base,
        task=backbone.task.name,
        resolution=getattr(backbone.task, "resolution", 1.0),
        labels=backbone.labels,
        width=backbone.width,
        pooling=backbone.trunk.pooling,
        max_tokens=backbone.trunk.max_tokens,
        norm=Norm(eps=backbone.eps),
        tokenizer=tokenizer_digest(backbone.trunk.tokenizer),
        fingerprint=backbone.fingerprint(),
        training=training,
        license=license,
        **parts,  # type: ignore[arg-type]
    )
    _write(folder, {**out, "backbone.json": dumps(manifest)})
    return manifest


def _form(expert: Expert) -> str:
    """Return the form whose tensors an expert has."""
    names = expert.state_dict().keys()
    for name, form in FORMS.items():
        if form.letters(expert.space).keys() == names:
            return name
    raise UsageError(f"{type(expert).__name__} is not a form that can be saved here")


def _activation(expert: Expert) -> Literal["gelu", "identity", "relu", "silu", "tanh"]:
    if not isinstance(expert, (LowRank, OwnHead)):
        raise UsageError(f"{type(expert).__name__} is not a form that can be saved here")
    return expert.activation  # type: ignore[return-value]


def _card_ref(card: CardFile) -> CardRef:
    digest = None if card.data is None else sha256_hex(card.data)
    return CardRef(kind=card.kind, file=card.name, sha256=digest, fit=card.fit, gate=card.gate)


def _tensors_ref(
    out: dict[str, bytes], name: str, tensors: Mapping[str, Tensor] | None
) -> FileRef | None:
    if not tensors:
        return None
    out[name] = safetensors.torch.save(_contiguous(tensors))
    return FileRef(file=name, sha256=sha256_hex(out[name]))


def _rows_ref(out: dict[str, bytes], name: str, data: bytes | None) -> RowsRef | None:
    if data is None:
        return None
    out[name] = data
    return RowsRef(file=name, sha256=sha256_hex(data), rows=sum(1 for x in data.splitlines() if x))


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.detach().to(torch.float32).contiguous() for k, v in tensors.items()}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
