"""What cannot be served is refused before the pointer moves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import redhost
from redhost.registry.home.composition import COMPOSITION_FILE, seal
from redhost.registry.package.manifest import dumps

from .conftest import TEXTS, comparable, open_host, open_live


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def reseal(home: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change generation 1's router so that every digest still agrees."""
    folder = home / "generations" / "1"
    record = open_host(home).generations.load(1)
    tensors = safetensors.torch.load((folder / "router.safetensors").read_bytes())
    tensors = {n: change(t) if t.is_floating_point() else t for n, t in tensors.items()}
    data = safetensors.torch.save(tensors)
    (folder / "router.safetensors").write_bytes(data)
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != COMPOSITION_FILE}
    (folder / COMPOSITION_FILE).write_bytes(dumps(seal(record, number=1, parent=None, files=files)))


def only_in_1(home: Path) -> Path:
    """Return the stored copy of the expert that only generation 1 needs."""
    return home / "store" / open_host(home).generations.load(1).members()["red"]


BROKEN = {
    "the router's file is damaged": lambda home: flip(home / "generations/1/router.safetensors"),
    "the record is damaged": lambda home: (home / "generations/1" / COMPOSITION_FILE).write_text(
        "{"
    ),
    "a stored expert is damaged": lambda home: flip(only_in_1(home) / "expert.safetensors"),
    "a stored expert is gone": lambda home: shutil.rmtree(only_in_1(home)),
    "the router answers NaN": lambda home: reseal(home, lambda t: t * float("nan")),
    "the router has another shape": lambda home: reseal(home, lambda t: t.new_zeros(3, 5, 7)),
    "the generation is gone": lambda home: shutil.rmtree(home / "generations/1"),
    "the home cannot be written": lambda home: (home / "lock-is-stale").mkdir(),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_cannot_be_served_leaves_the_old_one_answering(home, broken) -> None:
    live = open_live(home)
    before = comparable(live.predict(TEXTS))
    BROKEN[broken](home)
    with pytest.raises(redhost.RedhostError) as e:
        live.swap(1)
    assert "\n" not in str(e.value)
    assert live.generation == open_host(home).generations.current() == 2
    assert comparable(live.predict(TEXTS)) == before


def test_without_the_warm_up_a_generation_that_answers_nan_would_be_served(home, monkeypatch):
    """Control of the warm-up."""
    live = open_live(home)
    BROKEN["the router answers NaN"](home)
    monkeypatch.setattr("redhost.core.live._warm_up", lambda composed: None)
    live.swap(1)
    assert live.predict(TEXTS)[0].probability != live.predict(TEXTS)[0].probability
