"""What a forger reads and writes: the files of a package whose expert reads words."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from redhost_words.counts import Counts
from redhost_words.expert import CARD, COUNTS
from torch import Tensor

__all__ = ["Package", "Tensors"]

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Package:
    """What a forger changes of a package.

    Attributes:
        folder: Where its other files come from.
        manifest: Its manifest.
        card: The tensors of its card.
        words: The words of the card's rows, by part.
        counts: Its counts.
    """

    folder: Path
    manifest: Mapping[str, Any]
    card: Tensors
    words: Tensors
    counts: Counts

    @classmethod
    def read(cls, folder: Path) -> Package:
        """Read the package of a folder."""
        manifest = json.loads((folder / "expert.json").read_text("utf-8"))
        return cls(
            folder=folder,
            manifest=manifest,
            card=safetensors.torch.load_file(folder / manifest["card"]["file"]),
            words=safetensors.torch.load_file(folder / CARD),
            counts=Counts.load((folder / COUNTS).read_bytes(), labels=manifest["labels"]),
        )

    def write(self, folder: Path) -> None:
        """Write it into a folder, with digests that match."""
        for file in self.folder.glob("*.safetensors"):
            shutil.copy(file, folder)
        files = {
            self.manifest["card"]["file"]: _saved(self.card),
            CARD: _saved(self.words),
            COUNTS: self.counts.save(),
        }
        for name, data in files.items():
            (folder / name).write_bytes(data)
        card, *others = ((n, hashlib.sha256(data).hexdigest()) for n, data in files.items())
        shown = {part: len(self.card[f"{part}_z"]) for part in ("fit", "gate")}
        changed = {
            "card": {**self.manifest["card"], "sha256": card[1], **shown},
            "files": {**self.manifest["files"], **dict(others)},
        }
        (folder / "expert.json").write_text(json.dumps({**self.manifest, **changed}), "utf-8")


def _saved(tensors: Tensors) -> bytes:
    return safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})
