"""Killed at any moment, `redhost upgrade` leaves the old generation or the new one.

`make test-full` runs all moments; without `MOMENTS` two are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from warm_start import warm_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")

BOTH = {"red_expert_extra": "0.2.0", "red_expert_more": "0.2.0"}

STEPS = {
    "before the installer": ("redhost_sync.install", "install_wheels", "before"),
    "after the installer": ("redhost_sync.install", "install_wheels", "after"),
    "before the publication": ("redhost.core.composition.publish", "publish", "before"),
    "before the journal ends": ("redhost_index.upgrade", "end_journal", "before"),
}

FEW = ("before the installer", "before the publication")

DIES = """
import importlib, os, signal, sys
name, function, moment = sys.argv[1:4]
module = importlib.import_module(name)
real = getattr(module, function)

def dies(*arguments, **options):
    if moment == "after":
        real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(module, function, dies)
from redhost.cli import main
sys.argv = ["redhost", *sys.argv[4:]]
main()
"""


def killed(world: Any, *step: str) -> None:
    variables = {"REDHOST_HOME": str(world.home), "REDHOST_CONFIG": str(world.home / "config")}
    done = subprocess.run(
        warm_command("-c", DIES, *step, "upgrade", python=world.venv.python),
        check=False,
        capture_output=True,
        text=True,
        cwd=world.venv.folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("step", STEPS if "MOMENTS" in os.environ else FEW)
def test_a_killed_upgrade_is_finished(world: Any, answers: dict[str, Any], step: str) -> None:
    old, lock = answers.setdefault("old", world.predict()), world.lock()
    killed(world, *STEPS[step])
    published = step == "before the journal ends"
    assert (world.lock() != lock) == published
    if not published:
        assert world.predict() == old
    # Who kept the index may be gone by now: what was obtained is in the home.
    world.index.page("red-expert-more").unlink()
    if step == "before the installer":
        assert world.run("sync").returncode == 0
    else:
        done = world.json("upgrade", "extra")
        assert done["resumed"] and done["upgraded"] == []
    assert world.versions() == BOTH and not (world.home / "sync").exists()
    assert {world.lock()["experts"][i]["version"] for i in ("extra", "more")} == {"0.2.0"}
    new = answers.setdefault("new", (world.predict(), world.lock()["router"]))
    assert (world.predict(), world.lock()["router"]) == new
