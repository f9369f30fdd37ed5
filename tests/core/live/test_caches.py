"""Backbones kept in memory are known by content, never by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from redhost_author.testing import backbone_project, expert_project

import redhost
from redhost.core.model.stored import GenerationLoader

from .conftest import comparable


@pytest.fixture
def two_backbones(environment, tmp_path: Path) -> Path:
    """Two generations on two backbones of one name, and one expert's id."""
    home = tmp_path / "home"
    for seed in (0, 1):
        backbone = backbone_project(tmp_path / f"b{seed}" / "red-backbone-tiny-random", seed=seed)
        project = tmp_path / f"e{seed}" / "red-expert-one"
        expert_project(project, "one", backbone, seed=seed)
        dists = [environment.install(backbone), environment.install(project)]
        redhost.Host.open(home, backbone="tiny-random").recompose(accept=True)
        for dist in dists:
            environment.uninstall(dist)
    return home


def swapped_answers(home: Path) -> tuple[list[object], list[object]]:
    """Return what a live host answers after swaps between both, and what fresh ones do."""
    live = redhost.Live.open(home)
    texts = [f"one {n}" for n in range(3)]
    found: list[object] = []
    held = []  # requests under way, which keep the other backbone in memory
    for number in (1, 2, 1):
        live.swap(number)
        held.append(live.composed)
        found.append(comparable(live.predict(texts)))
    return found, [comparable(redhost.Host.open(home).load(n).answer(texts)) for n in (1, 2, 1)]


def test_backbones_of_one_name_are_never_mistaken_for_each_other(two_backbones) -> None:
    found, expected = swapped_answers(two_backbones)
    assert found == expected and found[0] != found[1]


def test_backbones_remembered_by_name_would_be_mistaken(two_backbones, monkeypatch) -> None:
    """Control: a stale cache key."""

    class ByName(dict[object, object]):
        def get(self, key, default=None):
            return super().get("tiny-random", default)

        def __setitem__(self, key, value) -> None:
            super().__setitem__("tiny-random", value)

    real = GenerationLoader.__init__

    def init(self, home: Path, **options) -> None:
        real(self, home, **options)
        self.backbones = ByName()

    fresh = swapped_answers(two_backbones)[1]
    monkeypatch.setattr(GenerationLoader, "__init__", init)
    assert swapped_answers(two_backbones)[0] != fresh
