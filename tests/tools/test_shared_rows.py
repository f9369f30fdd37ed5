"""What tests share of encoded texts: each is computed once, with the bits that it has anyway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import shared_rows
import torch

from redhost.core.backbones import feature_cache


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
