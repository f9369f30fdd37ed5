"""A home with two generations, and hosts on it."""

from __future__ import annotations

from pathlib import Path

import pytest

import redhost

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]


@pytest.fixture
def home(installed, tmp_path: Path, made_once) -> Path:
    """Generation 1 with three experts, generation 2 without red, and 2 is current."""
    home = tmp_path / "home"
    with made_once("live", home) as empty:
        if empty:
            open_host(home).recompose(router="evidence")
        installed.uninstall("red-expert-red")
        if empty:
            open_host(home).recompose(router="evidence")
    return home


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="toy")


def open_live(home: Path, kind: type[redhost.Live] = redhost.Live) -> redhost.Live:
    return kind.open(home, backbone="toy")


def comparable(answers: list[redhost.Answer]) -> list[tuple[object, ...]]:
    return [(a.label, a.probability, tuple(a.weights.items())) for a in answers]
