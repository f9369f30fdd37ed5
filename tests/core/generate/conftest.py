"""A generating backbone with three experts on three domains, and a causal router over them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import redhost
from redhost.core.answering.composed import Composed
from redhost.core.authoring.new_backbone import new_backbone
from redhost.core.authoring.shop import Shop
from redhost.core.composing.recompose import Outcome
from redhost.core.generate.author import train_generator
from redhost.core.generate.documents import split_documents
from redhost.registry.project import ExpertPlan, package_in, write_plan

DOMAINS = ("code", "sums", "tales")


@pytest.fixture(scope="session")
def speaker(speaker_model) -> redhost.Backbone:
    """The bare language model."""
    return redhost.Backbone.load(f"hf:{speaker_model}", task=redhost.Generation())


@pytest.fixture(scope="session")
def speaker_folder(speaker_model, tmp_path_factory) -> Path:
    """The language model as a backbone package's folder."""
    project = tmp_path_factory.mktemp("speaker-package")
    background = [redhost.BackgroundRow(text=f"Nothing of note, {n}; else?") for n in range(8)]
    new_backbone(
        project,
        "speaker",
        f"hf:{speaker_model}",
        task=redhost.Generation(),
        background=background,
    )
    return package_in(project)


@pytest.fixture(scope="session")
def shop(speaker_folder) -> Shop:
    return redhost.open_shop(speaker_folder)


@pytest.fixture(scope="session")
def rows_of(documents) -> Callable[..., list[redhost.Row]]:
    """Return the function from a domain to its documents."""
    return lambda name, count=24: [
        redhost.Row(text=d["text"], label="", domain=d["document"]) for d in documents(name, count)
    ]


@pytest.fixture(scope="session")
def train_one(shop, rows_of) -> Callable[..., Path]:
    """Return the function that trains an expert and returns its package's folder."""

    def train(project: Path, name: str, *, expert_id: str | None = None, **plan) -> Path:
        made = ExpertPlan(**{"id": expert_id or name, "backbone": "speaker", "rank": 8, **plan})
        redhost.write_project(project, kind="expert", package_id=made.id, summary=name)
        write_plan(project, made)
        settings = redhost.ExpertSettings(
            space="hidden", rank=made.rank, epochs=6, batch=256, learning_rate=1e-2, off_domain=0.01
        )
        train_generator(project, made, split_documents(rows_of(name)), shop=shop, settings=settings)
        return package_in(project)

    return train


@pytest.fixture(scope="session")
def speaking_experts(train_one, tmp_path_factory) -> dict[str, Path]:
    """Three experts' package folders, by id."""
    return {name: train_one(tmp_path_factory.mktemp(name), name) for name in DOMAINS}


@pytest.fixture(scope="session")
def outcome(speaker_folder, speaking_experts) -> Outcome:
    """The three, composed under a causal router, with its receipt."""
    torch.set_num_threads(1)
    return redhost.compose(speaker_folder, list(speaking_experts.values()))


@pytest.fixture(scope="session")
def composed(outcome) -> Composed:
    return outcome.composed


@pytest.fixture(scope="session")
def mixed(composed) -> Composed:
    """The same, answering with the mixture of the experts' distributions."""
    bus = copy.deepcopy(composed.bus)
    bus.router.output = "mixture"
    return dataclasses.replace(composed, bus=bus)
