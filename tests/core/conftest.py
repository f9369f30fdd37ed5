"""A small world for the core's tests: a random backbone, and experts as real packages on disk."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import redhost_author
import torch
from redhost_author.training.context import open_backbone
from redhost_author.training.expert import ExpertRows, train_expert
from redhost_author.training.packaging import (
    CardFile,
    ExpertDraft,
    save_backbone,
    save_expert,
    texts_card,
)

import redhost
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.bus.bus import LayerNorm
from redhost.core.types import BackgroundRow, CardRow, write_rows
from redhost.registry.package.manifest import BackboneManifest, BackboneRef, Training
from redhost.testing import tiny_backbone

LABELS = tuple("abcdef")
WORDS = {"red": "ab", "green": "cd", "blue": "ef"}
"""Each expert's id and labels; its domain is texts that repeat its id's letters."""

SETTINGS = redhost_author.ExpertSettings(rank=8, epochs=60, learning_rate=1e-2)

Builder = Callable[..., Path]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def labelled(name: str, count: int, *, start: int = 0) -> list[tuple[str, str]]:
    """Return labelled texts of a domain: (text, label)."""
    labels = WORDS[name]
    return [(f"{name} {n} {labels[n % 2]}", labels[n % 2]) for n in range(start, start + count)]


@pytest.fixture(scope="session")
def texts_of() -> Callable[..., list[tuple[str, str]]]:
    """Return the function from a domain to its labelled texts."""
    return labelled


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def bare(model_folder: Path) -> redhost.Backbone:
    return redhost.Backbone.load(f"hf:{model_folder}")


@pytest.fixture(scope="session")
def backbone(bare: redhost.Backbone) -> redhost.Backbone:
    """The random backbone with a random classifier over six labels."""
    generator = torch.Generator().manual_seed(1)
    classifier = torch.randn(len(LABELS), bare.width, generator=generator)
    return dataclasses.replace(bare, classifier=classifier, labels=LABELS)


@pytest.fixture(scope="session")
def backbone_folder(
    backbone: redhost.Backbone, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The backbone as a package's folder."""
    project = tmp_path_factory.mktemp("backbone")
    folder = redhost_author.write_project(
        project, kind="backbone", package_id="toy", summary="random weights"
    )
    background = [BackgroundRow(text=f"{w} 9", domain=w) for w in WORDS]
    background += [BackgroundRow(text=f"nothing {n}") for n in range(12)]
    evaluation = [
        redhost.Row(text=t, label=y, domain=w) for w in WORDS for t, y in labelled(w, 6, start=60)
    ]
    save_backbone(
        folder,
        dataclasses.replace(backbone, name="toy"),
        base={p.name: p.read_bytes() for p in model_folder.iterdir()},
        background=write_rows(background),
        evaluation=write_rows(evaluation),
    )
    return folder


@pytest.fixture(scope="session")
def manifest(backbone_folder: Path) -> BackboneManifest:
    return open_backbone(backbone_folder)[0]


@pytest.fixture(scope="session")
def build_expert(backbone: redhost.Backbone, manifest: BackboneManifest) -> Builder:
    """Return a function that trains an expert and writes it as a package's folder."""

    def build(
        project: Path,
        name: str,
        *,
        expert_id: str | None = None,
        settings: redhost_author.ExpertSettings = SETTINGS,
        gate: Sequence[CardRow] | None = None,
        card: CardFile | None = None,
    ) -> Path:
        norm = LayerNorm(width=backbone.width, eps=backbone.eps)
        data = labelled(name, 40)
        h = backbone.encode([t for t, _ in data])
        assert backbone.classifier is not None
        expert = train_expert(
            ExpertRows(h=h, z=norm(h), answers=[y for _, y in data]),
            backbone,
            labels=tuple(WORDS[name]),
            settings=settings,
        ).expert
        expert_id = expert_id or name
        folder = redhost_author.write_project(
            project, kind="expert", package_id=expert_id, summary=f"knows {name}"
        )
        fit, shown = (
            [CardRow(text=t, label=y, part=part) for t, y in some]
            for part, some in (
                ("fit", labelled(name, 10, start=40)),
                ("gate", labelled(name, 10, start=50)),
            )
        )
        draft = ExpertDraft(
            expert=expert,
            id=expert_id,
            backbone=BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
            domain=f"texts about {name}",
            card=card or texts_card([*fit, *(shown if gate is None else gate)]),
            canary=norm(h[:4]),
            training=Training(data="0" * 64, seed=0, epochs=60),
        )
        save_expert(folder, draft)
        return folder

    return build


@pytest.fixture(scope="session")
def expert_folders(
    build_expert: Builder, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Three experts as packages' folders, by id."""
    return {name: build_expert(tmp_path_factory.mktemp(name), name) for name in WORDS}


@pytest.fixture
def installed(environment, backbone_folder, expert_folders):
    """The toy backbone and three experts, installed; importing an expert would raise."""
    environment.install(backbone_folder.parents[1])
    for folder in expert_folders.values():
        environment.install(folder.parents[1], code="raise AssertionError('imported')\n")
    return environment


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(scope="session")
def encoded_texts(
    backbone: redhost.Backbone, manifest: BackboneManifest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A feature cache with the texts of the backbone and of the three experts."""
    folder = tmp_path_factory.mktemp("encoded")
    cache = FeatureCache(folder, backbone=backbone, fingerprint=manifest.fingerprint)
    cache.encode([f"nothing {n}" for n in range(12)])
    for name in WORDS:
        cache.encode([f"{name} 9", *(t for t, _ in labelled(name, 26, start=40))])
    return folder


@pytest.fixture
def encoded_home(tmp_path: Path, encoded_texts: Path) -> Path:
    """A home that has nothing yet but the features of those texts: half of a first composition."""
    home = tmp_path / "home"
    shutil.copytree(encoded_texts, home / "cache" / "features")
    return home
