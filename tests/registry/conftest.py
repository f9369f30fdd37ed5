"""Fake packages as real dist-info folders, and homes to publish into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from made_up import FINGERPRINT, Site, Tensors, backbone_manifest, expert_files, sha, tensors

from redhost.registry.home.composition import BackboneRecord, Composition, Member, RouterRecord
from redhost.registry.home.generations import Generations
from redhost.registry.package.manifest import BackboneManifest


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return Site(folder)


@pytest.fixture
def make_expert() -> Callable[..., dict[str, bytes]]:
    return expert_files


@pytest.fixture
def make_tensors() -> Callable[[], Tensors]:
    return tensors


@pytest.fixture
def make_backbone() -> Callable[..., BackboneManifest]:
    return backbone_manifest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def publish(home: Path) -> Callable[..., Composition]:
    """Publish a composition of made-up experts: ``publish("a", "b")`` or ``publish(a=b"…")``."""

    def call(*ids: str, **contents: bytes) -> Composition:
        generations = Generations(home)
        files = {expert_id: b"bytes of " + expert_id.encode() for expert_id in ids} | contents
        for data in files.values():
            generations.store.put({"expert.json": data}, digest=sha(data))
        draft = Composition(
            backbone=BackboneRecord(id="tiny", fingerprint=FINGERPRINT),
            experts=tuple(
                Member(id=i, dist=f"red-{i}", version="1", digest=sha(data))
                for i, data in files.items()
            ),
            router=RouterRecord(
                kind="linear", level="full", digest="d" * 64, seed=0, columns=tuple(sorted(files))
            ),
            settings={"tolerance": 1.0},
        )
        with generations.writer(timeout=5) as writer:
            return generations.publish(
                draft,
                {"router.safetensors": b"router", "receipt.json": b"{}"},
                writer=writer,
            )

    return call
