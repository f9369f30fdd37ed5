"""Every built-in router kind, end to end: real packages, from one expert to fifty."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import redhost
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


@pytest.mark.parametrize("count", [1, 2, 5, 50])
def test_every_kind_composes_answers_and_comes_back(installed, tmp_path, count) -> None:
    installed(count)
    for kind in sorted(k.kind for k in KINDS):
        home = tmp_path / kind
        receipt = open_host(home).recompose(router=kind)
        assert receipt.router.kind == kind and len(receipt.experts) == count
        [answer] = open_host(home).predict(["hello there"])  # from stored bytes
        weights = torch.tensor(list(answer.weights.values()))
        assert weights.sum() == pytest.approx(1, abs=1e-5) and (weights >= 0).all()
        assert open_host(home).predict(["hello there"]) == [answer]
