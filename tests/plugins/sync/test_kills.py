"""Killed at any moment, `redhost sync` goes on when it is run again, and ends the same.

`make test-full` runs all moments; without `MOMENTS` a few are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from warm_start import warm_command

from .conftest import SHARED, TEXTS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")

STEPS = {
    "before the installer": ("redhost_sync.install", "install_wheels", "before"),
    "after the installer": ("redhost_sync.install", "install_wheels", "after"),
    "before the publication": ("redhost.core.composition.publish", "publish", "before"),
    "after the publication": ("redhost.core.composition.publish", "publish", "after"),
    "before the uninstallation": ("redhost_sync.synchronise", "uninstall", "before"),
    "after the uninstallation": ("redhost_sync.synchronise", "uninstall", "after"),
    "before the journal ends": ("redhost_sync.synchronise", "end_journal", "before"),
}

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

HALF = """
import os, signal, sys
from redhost.registry.home import generations
real = generations.atomic.write_atomic

def dies(path, data):
    if path.name == "current":  # the mark that the lock is stale is written, and nothing else
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, data)

generations.atomic.write_atomic = dies
from redhost.cli import main
sys.argv = ["redhost", *sys.argv[1:]]
main()
"""


class Rig:
    """A home with the composition of `late`, and the lock of `extra` checked out over it."""

    def __init__(self, project: Any, draft: Any, folder: Path) -> None:
        self.project, self.folder = project, folder
        (more := folder / "more").mkdir()
        self.late = draft("late").write(more)
        self.lock = (project.home / "redhost.lock").read_bytes()
        self.count = 0
        project.empty()
        done = project.venv.run("add", str(self.late), home=folder / "home")
        assert done.returncode == 0, done.stderr
        (folder / "home" / "redhost.lock").write_bytes(self.lock)
        ignored = shutil.ignore_patterns(*SHARED)
        shutil.copytree(project.venv.site, folder / "site", ignore=ignored)

    def prepared(self) -> Path:
        """Return a new home whose environment has `late`, which the lock has no more."""
        self.project.empty()
        self.count += 1
        home = self.folder / f"home{self.count}"
        shutil.copytree(self.folder / "home", home)
        shutil.copytree(self.folder / "site", self.project.venv.site, dirs_exist_ok=True)
        return home

    def start(self, *arguments: str, home: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            warm_command(*arguments, python=self.project.venv.python),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "REDHOST_HOME": str(home)},
        )

    def require_finished(self, home: Path) -> None:
        """Run it again, and compare all that it is to make with what was composed first."""
        done, answered, again = self.project.venv.session(
            ("sync", "--from", str(self.project.out)),
            ("predict", "--json", *TEXTS),
            ("sync",),
            home=home,
        )
        assert (done[0], answered[0], again[0]) == (0, 0, 0), (done, answered, again)
        names = " ".join(self.project.infos())
        assert "red_expert_extra" in names and "late" not in names and "~" not in names, names
        assert (home / "redhost.lock").read_bytes() == self.lock
        assert not (home / "sync").exists()
        answers = [{**x, "generation": None} for x in json.loads(answered[1])]
        assert answers == self.project.answers
        assert "nothing changed" in again[1]


@pytest.fixture(scope="module")
def rig(composed: Any, draft: Any, tmp_path_factory: Any) -> Rig:
    return Rig(composed, draft, tmp_path_factory.mktemp("rig"))


MOMENTS = int(os.environ.get("MOMENTS", "0"))
CHOSEN = list(STEPS) if MOMENTS else ["after the installer"]


@pytest.mark.parametrize("step", CHOSEN)
def test_killed_at_a_step(rig: Rig, step: str) -> None:
    home = rig.prepared()
    options = ("sync", "--from", str(rig.project.out))
    child = rig.start("-c", DIES, *STEPS[step], *options, home=home)
    assert child.wait(60) == -signal.SIGKILL
    assert (home / "sync").is_dir()
    rig.require_finished(home)


def test_killed_within_a_publication_the_lock_is_not_lost(rig: Rig) -> None:
    """The next writer derives the lock from the generation that is current, the older one."""
    home = rig.prepared()
    child = rig.start("-c", HALF, "sync", "--from", str(rig.project.out), home=home)
    assert child.wait(60) == -signal.SIGKILL and (home / "lock-is-stale").exists()
    done = rig.project.venv.run("disable", "late", home=home)  # any writer
    assert done.returncode == 0 and (home / "redhost.lock").read_bytes() != rig.lock
    rig.require_finished(home)


@pytest.fixture(scope="module")
def whole(rig: Rig) -> float:
    """Return the seconds that a `sync` takes which nobody kills."""
    home = rig.prepared()
    start = time.monotonic()
    child = rig.start("-m", "redhost", "sync", "--from", str(rig.project.out), home=home)
    assert child.wait(120) == 0
    return time.monotonic() - start


@pytest.mark.parametrize("n", range(MOMENTS))
def test_killed_at_a_moment_in_between(rig: Rig, whole: float, n: int) -> None:
    """Also while pip runs, which outlives the killed process."""
    home = rig.prepared()
    child = rig.start("-m", "redhost", "sync", "--from", str(rig.project.out), home=home)
    time.sleep(whole * (n + 0.5) / MOMENTS)
    child.kill()
    assert child.wait() in {-signal.SIGKILL, 0}  # the last ones may be done
    rig.require_finished(home)
