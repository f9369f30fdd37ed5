"""Every built-in router kind, end to end: real packages, from one expert to two dozen."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import redhost
from redhost.core.bus.signals import ANSWERS
from redhost.core.routers import KINDS


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="tiny-random")


@pytest.fixture
def installed(redhost_fake_expert):
    """Install n experts, each with labels of its own."""

    def install(count: int) -> None:
        for n in range(count):
            redhost_fake_expert(f"team{n:02}", labels=(f"a{n}", f"b{n}"), seed=n)

    return install


GAMES = 8
"""Kinds that read the experts' answers play games of thousands of steps: with so many, not more."""


@pytest.mark.parametrize("count", [1, 2, GAMES, 24])
def test_every_kind_composes_answers_and_comes_back(
    installed, tmp_path, count, every: Sequence[type[redhost.Router]] = KINDS
) -> None:
    installed(count)
    first, *kinds = sorted(k.kind for k in every if count <= GAMES or ANSWERS not in k.reads)
    for kind in (first, *kinds):
        home = tmp_path / kind
        if kind != first:  # the texts are encoded once
            shutil.copytree(tmp_path / first / "cache", home / "cache")
        receipt = open_host(home).recompose(router=kind)
        assert receipt.router.kind == kind and len(receipt.experts) == count
        [answer] = open_host(home).predict(["hello there"])  # from stored bytes
        weights = torch.tensor(list(answer.weights.values()))
        assert weights.sum() == pytest.approx(1, abs=1e-5) and (weights >= 0).all()
        assert open_host(home).predict(["hello there"]) == [answer]
