"""redhost sweep: which router suits what is composed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def home(shipped: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(shipped, tmp_path / "home"))


def test_the_command_tells_the_best_first(call, home) -> None:
    command = ("sweep", "centroid", "evidence", "--seeds", "2", "--home", home)
    code, out, _ = call(*command, "--json")
    assert code == 0
    assert [(s["router"], s["seed"], s["error"]) for s in json.loads(out)] == [
        ("centroid", 0, None),
        ("centroid", 1, None),
        ("evidence", 0, None),
        ("evidence", 1, None),
    ]
    code, out, _ = call(*command)
    assert code == 0 and out.index("evidence") < out.index("centroid")


def test_an_unknown_router_is_named_with_what_is_known(call, home) -> None:
    code, _, err = call("sweep", "evidnce", "--home", home)
    assert code == 2 and "Did you mean 'evidence'?" in err
