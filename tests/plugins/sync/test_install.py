"""What a killed installer left: its own files are removed, and no others."""

from __future__ import annotations

import shutil
import sysconfig
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redhost_sync import install
from redhost_sync.alone import alone
from redhost_sync.install import clean
from redhost_sync.journal import Writing

from redhost.registry.errors import RedhostError

INFO = "red_expert_extra-0.1.0.dist-info"
WRITING = Writing(dist="red-expert-extra", tops=("red_expert_extra", INFO))


@pytest.fixture
def site(tmp_path: Path, draft: Any, monkeypatch: Any) -> Path:
    """A site folder with the expert and a neighbour."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "site"))
    assert install._sites() == [tmp_path / "site"]
    for name in ("extra", "extra2"):
        shutil.unpack_archive(draft(name).write(tmp_path), tmp_path / "site", "zip")
    return tmp_path / "site"


def names(site: Path) -> set[str]:
    return {path.name for path in site.iterdir()}


NEIGHBOUR = {"red_expert_extra2", "red_expert_extra2-0.1.0.dist-info"}


def test_what_is_whole_or_absent_stays(site: Path) -> None:
    before = names(site)
    assert clean([WRITING]) == () and names(site) == before
    for name in ("red_expert_extra", INFO):
        shutil.rmtree(site / name)
    assert clean([WRITING]) == () and names(site) == NEIGHBOUR


@pytest.mark.parametrize(
    "damage",
    [
        lambda site: (site / INFO / "RECORD").unlink(),
        lambda site: shutil.rmtree(site / INFO),
        lambda site: shutil.rmtree(site / "red_expert_extra"),
        lambda site: (site / "red_expert_extra" / "expert.json").write_text("{}"),
        lambda site: (site / "red_expert_extra").rename(site / "~ed_expert_extra"),
        lambda site: (site / INFO).rename(site / f"~{INFO[1:]}"),
        lambda site: shutil.copytree(site / INFO, site / INFO.replace("0.1.0", "0.2.0")),
    ],
)
def test_what_was_left_half_way_is_removed_and_its_neighbour_is_not(
    site: Path, damage: Any
) -> None:
    damage(site)
    assert clean([WRITING]) == ("red-expert-extra",)
    assert names(site) == NEIGHBOUR


def test_the_lock_of_sync_is_waited_for(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(RedhostError, match="another 'redhost sync'"):
        ExitStack().enter_context(alone(tmp_path, patience=0.1))
    held, done = threading.Event(), []

    def hold() -> None:
        with alone(tmp_path):
            held.set()
            time.sleep(0.3)
            done.append(1)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with alone(tmp_path):
        assert done == [1]
    thread.join()
