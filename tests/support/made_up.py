"""Packages that are made up, as real dist-info folders: bytes that the registry accepts."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from redhost.registry.package.discover import Package, discover
from redhost.registry.package.manifest import BackboneManifest, Base, Norm

D, R, LABELS = 16, 4, ("2", "3", "4")
FINGERPRINT = "f" * 64

Tensors = dict[str, "np.ndarray[Any, Any]"]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tensors() -> Tensors:
    rng = np.random.default_rng(0)
    return {
        "U": rng.normal(size=(R, D)).astype("float32"),
        "V": rng.normal(size=(D, R)).astype("float32"),
    }


def expert_files(
    expert_id: str,
    *,
    weights: Tensors | None = None,
    change: Mapping[str, Any] | None = None,
    raw: Mapping[str, bytes] | None = None,
    canary: bytes | None = None,
    card: bytes | None = None,
    width: int = D,
    out: int | None = None,
) -> dict[str, bytes]:
    """Return the files of an expert; ``change`` patches the manifest by dotted path.

    Other canaries and cards go in with their sha256, ``raw`` bytes replace files afterwards.
    """
    rows = [{"text": f"q{i}", "label": "2", "part": p} for i in range(2) for p in ("fit", "gate")]
    files = {
        "expert.safetensors": save(weights or tensors()),
        "card.jsonl": card or "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "canary.safetensors": canary
        or save({"z": np.ones((2, width), "f4"), "delta": np.ones((2, out or width), "f4")}),
    }
    manifest: dict[str, Any] = {
        "schema": "redhost.expert/1",
        "id": expert_id,
        "bus_api": ">=1,<2",
        "backbone": {"name": "tiny", "fingerprint": FINGERPRINT},
        "form": "residual",
        "reads": {"tap": "final", "width": D},
        "writes": {"space": "hidden", "tap": "final"},
        "rank": R,
        "activation": "gelu",
        "labels": list(LABELS),
        "domain": "sums",
        "weights": {"file": "expert.safetensors", "sha256": sha(files["expert.safetensors"])},
        "card": {
            "kind": "texts",
            "file": "card.jsonl",
            "sha256": sha(files["card.jsonl"]),
            "fit": 2,
            "gate": 2,
        },
        "canary": {
            "file": "canary.safetensors",
            "sha256": sha(files["canary.safetensors"]),
            "tolerance": 1e-5,
        },
        "training": {"data": "0" * 8, "seed": 0, "epochs": 1},
        "license": "Apache-2.0",
    }
    patch(manifest, change or {})
    files["expert.json"] = json.dumps(manifest).encode()
    return {**files, **(raw or {})}


def patch(manifest: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Set fields by dotted path."""
    for path, value in change.items():
        *parents, last = path.split(".")
        place = manifest
        for parent in parents:
            place = place[parent]
        place[last] = value


def backbone_manifest(**changes: Any) -> BackboneManifest:
    fields: dict[str, Any] = {
        "id": "tiny",
        "bus_api": ">=1,<2",
        "base": Base(kind="hub", id="a/b", revision="1"),
        "labels": LABELS,
        "width": D,
        "pooling": "last",
        "norm": Norm(),
        "tokenizer": "a" * 64,
        "fingerprint": FINGERPRINT,
        "license": "Apache-2.0",
    }
    return BackboneManifest(**{**fields, **changes})


@dataclass
class Site:
    """A site-packages folder on ``sys.path``."""

    folder: Path
    imported: list[str] = field(default_factory=list)

    def install(
        self,
        dist: str,
        files: Mapping[str, bytes],
        *,
        group: str = "redhost.experts",
        version: str = "0.1.0",
        module: str | None = None,
        value: str | None = None,
        code: str = "raise AssertionError('imported')\n",
        extra_rows: str = "",
    ) -> Path:
        module = module or dist.replace("-", "_")
        folder = self.folder / module
        info = self.folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        info.mkdir()
        for name, data in {"__init__.py": code.encode(), **files}.items():
            (folder / name).write_bytes(data)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\nSummary: Made up.\n\nText\n"
        )
        (info / "entry_points.txt").write_text(f"[{group}]\n{dist} = {value or module}\n")
        self.seal(info, folder, extra_rows=extra_rows)
        return folder

    def seal(self, info: Path, folder: Path, *, extra_rows: str = "") -> None:
        """Write a RECORD that agrees with what is there."""
        files = [p for p in (*folder.iterdir(), *info.iterdir()) if p.is_file()]
        rows = [self._row(p) for p in sorted(files) if p.name != "RECORD"]
        rows.append(f"{info.name}/RECORD,,")
        (info / "RECORD").write_text("\n".join(rows) + "\n" + extra_rows)
        importlib.invalidate_caches()

    def _row(self, path: Path) -> str:
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{path.relative_to(self.folder).as_posix()},sha256={digest},{len(data)}"

    def expert(self, expert_id: str, *, dist: str | None = None, **changes: Any) -> Path:
        return self.install(dist or f"red-expert-{expert_id}", expert_files(expert_id, **changes))

    def experts(self) -> tuple[Package, ...]:
        """Return the installed experts of this site alone, whatever else the venv holds."""
        return tuple(p for p in discover("expert") if p.folder and self.folder in p.folder.parents)
