"""What tests share of encoded texts: each is computed once, with the bits that it has anyway."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import shared_rows
import torch
from redhost_author.verifying import Verifier

from redhost.core.backbones import feature_cache
from redhost.registry.package.readers import read_backbone, read_expert


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_text_is_computed_once_for_each_key(place: str, tmp_path: Path, monkeypatch) -> None:
    computed: list[str] = []

    def compute(texts: Sequence[str]) -> list[torch.Tensor]:
        computed.extend(texts)
        return [torch.full((1, 2), len(text) / 3) for text in texts]

    def encode(key: str, *texts: str) -> list[bytes]:
        table = feature_cache.FeatureTable(None, (key,), width=2, compute=compute, chunk=8)
        return [row.tobytes() for row in table.encode(texts)]

    plain = encode("a", "one", "three")
    assert plain == encode("a", "one", "three") and len(computed) == 4  # control: nothing is shared
    computed.clear()
    rows = shared_rows.in_folder(tmp_path) if place == "folder" else shared_rows.in_memory({})
    shared_rows.install(monkeypatch.setattr, rows)
    assert encode("a", "one", "three") == encode("a", "three", "one")[::-1] == plain
    assert sorted(computed) == ["one", "three"]
    encode("a", "seven")
    encode("b", "one")
    assert computed[2:] == ["seven", "one"]


def test_checks_of_experts_share_what_they_encode(monkeypatch) -> None:
    def files(module: str) -> dict[str, bytes]:
        folder = Path(importlib.util.find_spec(module).origin).parent
        return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}

    known: dict[Any, dict[str, Any]] = {}
    shared_rows.install(monkeypatch.setattr, shared_rows.in_memory(known))
    expert = read_expert(files("red_expert_range3")).unwrap("it")
    backbone = read_backbone(files("red_backbone_tiny")).unwrap("it")
    assert Verifier().expert(expert, backbone=backbone) == ()
    [rows] = known.values()
    assert len(rows) > 100
