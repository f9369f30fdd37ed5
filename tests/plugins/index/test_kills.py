"""Killed at any moment, `redhost upgrade` leaves the old generation or the new one.

`make test-full` runs all moments; without `MOMENTS` two are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from release import write_index
from warm_start import warm_command

from .conftest import TEXTS

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


def killed(world: Any, *step: str, command: Sequence[str] = ("upgrade",)) -> None:
    variables = {"REDHOST_HOME": str(world.home), "REDHOST_CONFIG": str(world.home / "config")}
    done = subprocess.run(
        warm_command("-c", DIES, *step, *command, python=world.venv.python),
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


def test_a_new_router_outlives_a_kill_of_what_finishes_a_killed_upgrade(
    world: Any, version_of: Any
) -> None:
    """Its weights are nowhere but in the journal, which is replaced when the work goes on."""
    version_of("extra", "0.4.0", of="range5").write(world.index.folder)
    write_index(world.index.folder)
    router, step = world.lock()["router"], STEPS["before the installer"]
    killed(world, *step, command=("upgrade", "extra", "--accept"))
    for _ in range(2):
        killed(world, *step, command=("sync",))
    [weights] = (world.home / "sync").glob("router-*.safetensors")
    assert world.run("sync").returncode == 0
    assert world.versions() == {"red_expert_extra": "0.4.0", "red_expert_more": "0.1.0"}
    assert world.lock()["router"] != router
    assert weights.stem.endswith(world.lock()["router"]["digest"][:16])


MOMENTS = int(os.environ.get("MOMENTS", "0"))


def started(world: Any) -> subprocess.Popen[bytes]:
    variables = {"REDHOST_HOME": str(world.home), "REDHOST_CONFIG": str(world.home / "config")}
    return subprocess.Popen(
        warm_command("-m", "redhost", "upgrade", python=world.venv.python),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=world.venv.folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


@dataclass
class Whole:
    """An upgrade that nobody kills: its seconds, and the answers and the lock before and after."""

    seconds: float
    answers: list[Any]
    locks: list[Any]


@pytest.fixture(scope="module")
def whole(composed: Any) -> Whole:
    composed.reset()
    before, lock = composed.predict(), composed.lock()
    start = time.monotonic()
    assert started(composed).wait(120) == 0
    seconds = time.monotonic() - start
    return Whole(seconds, [before, composed.predict()], [lock, composed.lock()])


@pytest.mark.parametrize("n", range(MOMENTS))
def test_killed_at_a_moment_the_old_or_the_new_answers_and_the_next_finishes(
    world: Any, whole: Whole, n: int
) -> None:
    """Also while pip runs, which outlives the killed process."""
    child = started(world)
    time.sleep(whole.seconds * (n + 0.5) / MOMENTS)
    child.kill()
    assert child.wait() in {-signal.SIGKILL, 0}  # the last ones may be done
    predict = ("predict", "--json", *TEXTS)
    first, done, then = world.venv.session(predict, ("upgrade", "--json"), predict, home=world.home)
    assert (first[0], done[0], then[0]) == (0, 0, 0), (first, done, then)
    answers = [[{**x, "generation": None} for x in json.loads(out)] for _, out, _ in (first, then)]
    assert answers[0] in whole.answers and answers[1] == whole.answers[1]
    assert world.versions() == BOTH and not (world.home / "sync").exists()
    assert world.lock() == whole.locks[1]
