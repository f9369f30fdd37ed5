"""A small good expert with a card of any kind, as files and as a wheel."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from redhost_author.testing import judge_expert
from redhost_author.training.packaging import (
    CardFile,
    ExpertDraft,
    save_expert,
    statistics_card,
    texts_card,
    vectors_card,
)

import redhost
from redhost.core.bus.experts import LowRank
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.types import CardRow
from redhost.registry.package.manifest import BackboneRef, Training

__all__ = [
    "KINDS",
    "WHEEL",
    "WIDTH",
    "CardKind",
    "Subject",
    "info_files",
    "pack",
    "record_of",
    "seal",
]

CardKind = Literal["texts", "vectors", "statistics"]
KINDS: tuple[CardKind, ...] = get_args(CardKind)

MODULE, INFO = "red_expert_mutant", "red_expert_mutant-0.1.0.dist-info"
WHEEL = "red_expert_mutant-0.1.0-py3-none-any.whl"
"""The file name of its wheel."""
WIDTH, RANK, ROWS, LABELS = 32, 8, 24, ("2", "3", "4")

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Subject:
    """The expert that mutants are made from.

    Attributes:
        files: Its bytes by name.
        digest: Its digest.
    """

    files: Files
    digest: str

    @classmethod
    def make(cls, card: CardKind) -> Subject:
        """Return the expert; equal calls give equal bytes."""
        generator = torch.Generator().manual_seed(0)
        expert = LowRank(
            U=torch.randn(RANK, WIDTH, generator=generator) / WIDTH**0.5,
            V=torch.randn(WIDTH, RANK, generator=generator) / RANK**0.5,
            activation="gelu",
            space="hidden",
            labels=LABELS,
        )
        z = torch.randn(ROWS, WIDTH, generator=generator)
        draft = ExpertDraft(
            expert=expert.eval().requires_grad_(False),
            id="mutant",
            backbone=BackboneRef(name="none", fingerprint="0" * 64),
            domain="sums that nobody asks for",
            card=_card(card, z),
            canary=z[:4],
            training=Training(data="0" * 64, seed=0, epochs=1),
        )
        with tempfile.TemporaryDirectory() as folder:
            save_expert(Path(folder), draft)
            files = {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}
        digest = judge_expert(files)
        if not isinstance(digest, str):
            raise redhost.errors.CompositionError(
                "the good expert is not good", found=digest[0].reason
            )
        return cls(files, digest)

    @property
    def card(self) -> str:
        """The card's file name."""
        return next(name for name in self.files if name.startswith("card."))

    @cached_property
    def wheel(self) -> bytes:
        """The expert as a wheel."""
        return pack(self.files, info_files(self.files))


def _card(kind: CardKind, z: torch.Tensor) -> CardFile:
    names = [LABELS[n % len(LABELS)] for n in range(len(z))]
    half = len(z) // 2
    if kind == "texts":
        parts = ["fit" if n < half else "gate" for n in range(len(z))]
        return texts_card(
            [
                CardRow(text=f"What is {n}?", label=y, part=part)
                for n, (y, part) in enumerate(zip(names, parts, strict=True))
            ]
        )
    if kind == "statistics":
        return statistics_card(z, names, labels=LABELS)
    return vectors_card(
        fit_z=z[:half],
        fit_labels=names[:half],
        gate_h=z[half:],
        gate_labels=names[half:],
        labels=LABELS,
        eps=1e-5,
        statistics=Statistics.of_rows(z, names),
    )


def seal(files: Files) -> dict[str, bytes]:
    """Return the files with a manifest that names their digests, as a careful attacker would."""
    manifest = json.loads(files["expert.json"])
    for part in ("weights", "card", "canary"):
        data = files[manifest[part]["file"]]
        manifest[part]["sha256"] = hashlib.sha256(data).hexdigest()
    return {**files, "expert.json": json.dumps(manifest).encode()}


def info_files(files: Files) -> dict[str, bytes]:
    """Return the files of the dist-info folder, including RECORD."""
    info = {
        "METADATA": b"Metadata-Version: 2.1\nName: red-expert-mutant\nVersion: 0.1.0\n",
        "WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": f"[redhost.experts]\nmutant = {MODULE}\n".encode(),
    }
    return {**info, "RECORD": record_of(files, info)}


def record_of(files: Files, info: Files) -> bytes:
    """Return the RECORD of these files."""
    named = {f"{MODULE}/{n}": d for n, d in {"__init__.py": b"", **files}.items()}
    named |= {f"{INFO}/{n}": d for n, d in info.items()}
    rows = [f"{name},sha256={_hash(data)},{len(data)}" for name, data in sorted(named.items())]
    return "\n".join([*rows, f"{INFO}/RECORD,,"]).encode() + b"\n"


def pack(files: Files, info: Files, *, more: Files | None = None) -> bytes:
    """Return a wheel of these files; equal calls give equal bytes."""
    buffer = io.BytesIO()
    members = {f"{MODULE}/__init__.py": b""} | {f"{MODULE}/{n}": d for n, d in files.items()}
    members |= {f"{INFO}/{n}": d for n, d in info.items()} | dict(more or {})
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
