"""A generating backbone with three experts on three domains, and a causal router over them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import redhost_author
import torch
from redhost_author.project import ExpertPlan, package_in, write_plan
from redhost_author.training.context import AuthoringContext
from redhost_author.training.recipes import train_package
from redhost_generate.documents import split_documents

import redhost
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.core.model.composed import ComposedModel

from ...commands.conftest import call, config, shipped
from ...core.conftest import (
    backbone,
    backbone_folder,
    bare,
    home,
    manifest,
    model_folder,
    one_thread,
)

__all__ = ["backbone", "backbone_folder", "bare", "call", "config", "home", "manifest"]
__all__ += ["model_folder", "one_thread", "shipped"]

DOMAINS = ("code", "sums", "tales")


@pytest.fixture(autouse=True, scope="session")
def registered(generation) -> None:
    """The task is there for every test, as where its plugin is loaded."""


@pytest.fixture(scope="session")
def speaker(speaker_model) -> redhost.Backbone:
    """The bare language model."""
    return redhost.Backbone.load(
        f"hf:{speaker_model}", task=redhost.plugins.make_task("generation")
    )


@pytest.fixture(scope="session")
def context(speaker_folder) -> AuthoringContext:
    return redhost_author.open_for_training(speaker_folder)


@pytest.fixture(scope="session")
def train_one(context, rows_of) -> Callable[..., Path]:
    """Return the function that trains an expert and returns its package's folder."""

    def train(project: Path, name: str, *, expert_id: str | None = None, **plan) -> Path:
        made = ExpertPlan(**{"id": expert_id or name, "backbone": "speaker", "rank": 8, **plan})
        redhost_author.write_project(project, kind="expert", package_id=made.id, summary=name)
        write_plan(project, made)
        settings = redhost_author.ExpertSettings(
            space="hidden", rank=made.rank, epochs=6, batch=256, learning_rate=1e-2, off_domain=0.01
        )
        train_package(
            project, made, split_documents(rows_of(name)), context=context, settings=settings
        )
        return package_in(project)

    return train


@pytest.fixture(scope="session")
def speaking_experts(train_one, tmp_path_factory) -> dict[str, Path]:
    """Three experts' package folders, by id."""
    return {name: train_one(tmp_path_factory.mktemp(name), name) for name in DOMAINS}


@pytest.fixture(scope="session")
def outcome(speaker_folder, speaking_experts) -> RecomposeResult:
    """The three, composed under a causal router, with its receipt."""
    torch.set_num_threads(1)
    return compose(speaker_folder, list(speaking_experts.values()))


@pytest.fixture(scope="session")
def composed(outcome) -> ComposedModel:
    return outcome.composed


@pytest.fixture(scope="session")
def mixed(composed) -> ComposedModel:
    """The same, answering with the mixture of the experts' distributions."""
    bus = copy.deepcopy(composed.bus)
    bus.router.output = "mixture"
    return dataclasses.replace(composed, bus=bus)
