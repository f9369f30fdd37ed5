"""A folder full of traps: whatever lies where a user stands is never run.

Every module of Python and every package installed here has a namesake in that folder, which leaves
a mark when it is imported. The commands are all those that start another process; that one is
started as users' are, the command itself warm.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from red_lab.hotswap import Site
from redhost_author import ExpertPlan, write_project
from redhost_author.project import write_plan
from redhost_author.testing import backbone_project, expert_project
from redhost_serve.process import compose_home, serving
from warm_start import warm_command

import redhost
from redhost.core.types import write_rows
from redhost.registry.environment import python_command
from redhost.testing import Environment

pytestmark = pytest.mark.usefixtures("fresh_children")
SCRIPT = Path(sysconfig.get_path("scripts")) / "redhost"
STARTUP = ("sitecustomize", "usercustomize")
TRAP = """
import os, sys
open(os.path.join({marks!r}, __name__), "w").close()
raise SystemExit("a trap was sprung: " + __name__)
"""


def namesakes() -> set[str]:
    """Return every top-level name that a process here could import."""
    installed = {name for name in metadata.packages_distributions() if name.isidentifier()}
    return {*sys.stdlib_module_names, *installed, "pip", "redhost", *STARTUP}


class Trapped:
    """A folder of traps, and a home elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks, self.home = folder / "here", folder / "marks", folder / "home"
        self.marks.mkdir()
        for name in sorted(namesakes()):
            trap = self.folder / name / "__init__.py"
            trap.parent.mkdir(parents=True)
            trap.write_text(TRAP.format(marks=str(self.marks)))
            (trap.parent / "__main__.py").write_text(TRAP.format(marks=str(self.marks)))

    @property
    def sprung(self) -> list[str]:
        return sorted(p.name for p in self.marks.iterdir())

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment(**environment),
        )

    def environment(self, **more: str) -> dict[str, str]:
        own = {"REDHOST_HOME": str(self.home), "REDHOST_CONFIG": str(self.home / "config")}
        return {**os.environ, "OMP_NUM_THREADS": "1", **own, **more}


@pytest.fixture
def trapped(tmp_path: Path) -> Trapped:
    return Trapped(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A tiny random backbone and two experts, in a folder of packages."""
    folder = tmp_path_factory.mktemp("packages")
    place = Environment(folder / "site")
    place.folder.mkdir()
    backbone = backbone_project(folder / "red-backbone-tiny-random")
    place.install(backbone)
    for name in ("one", "two"):
        place.install(expert_project(folder / f"red-expert-{name}", name, backbone))
    return place


@pytest.mark.parametrize("arguments", [("-m", "pip"), ("-m", "redhost"), ("-c", "import json")])
def test_the_traps_work(trapped: Trapped, arguments) -> None:
    """Control: what starts Python as one does falls into them."""
    assert trapped.run(sys.executable, *arguments).returncode == 1
    assert trapped.sprung


@pytest.mark.parametrize("arguments", [("-m", "pip", "--version"), ("-c", "import redhost, json")])
def test_a_child_process_does_not_see_the_current_folder(trapped: Trapped, arguments) -> None:
    assert trapped.run(*python_command(*arguments)).returncode == 0
    assert trapped.sprung == []


@pytest.mark.parametrize("how", [("-m", "redhost"), ("-mredhost",)])
def test_a_module_run_by_hand_leaves_the_current_folder_out(trapped: Trapped, how) -> None:
    """Its own namesake could still run, and what Python imports to find it: they come first."""
    find = "import runpy, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    first = subprocess.run(
        [sys.executable, "-I", "-c", find], check=True, capture_output=True, text=True
    ).stdout.split()
    for name in ("redhost", *first):
        shutil.rmtree(trapped.folder / name, ignore_errors=True)
    assert (trapped.folder / "json").is_dir()
    done = trapped.run(sys.executable, *how, "list-experts", "--json")
    assert (done.returncode, trapped.sprung) == (0, []), done.stderr


def test_somebody_elses_module_keeps_its_folder(tmp_path: Path) -> None:
    """Control: one that imports redhost while Python looks for it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("import redhost\n")
    (tmp_path / "mine/__main__.py").write_text("import beside\n")
    (tmp_path / "beside.py").touch()
    subprocess.run([sys.executable, "-m", "mine", "redhost"], check=True, cwd=tmp_path)


def test_add_and_remove(trapped: Trapped, make_venv: Any, draft: Any, tmp_path: Path) -> None:
    """They start pip: to download, to install, to uninstall."""
    venv, folder = make_venv(tmp_path / "venv"), tmp_path / "wheels"
    folder.mkdir()
    wheel = draft("mine").write(folder)
    for command in (
        ("add", str(wheel), "--accept"),
        ("remove", "mine", "--accept"),
        ("add", "red-expert-mine", "--find-links", str(folder), "--accept"),
    ):
        done = trapped.run(*warm_command("-P", "-m", "redhost", *command, python=venv.python))
        assert (done.returncode, trapped.sprung) == (0, []), done.stderr


def write_training_plan(folder: Path) -> Path:
    """Write a plan of two experts for the backbone that ships."""
    lines = []
    for name in ("sun", "moon"):
        project = write_project(folder / name, kind="expert", package_id=name, summary=name)
        write_plan(project.parents[1], ExpertPlan(id=name, backbone="tiny", rank=4))
        rows = [redhost.Row(text=f"{name} {n}", label=f"{n % 2}") for n in range(60)]
        (folder / f"{name}.jsonl").write_bytes(write_rows(rows))
        lines.append(json.dumps({"dir": name, "data": f"{name}.jsonl", "epochs": 1}))
    (folder / "plan.jsonl").write_text("\n".join(lines))
    return folder / "plan.jsonl"


def test_workers(trapped: Trapped, tmp_path: Path) -> None:
    """These start `redhost_ray.worker`."""
    for command in (
        ("recompose",),
        ("check", "range1", "range2"),
        ("train-many", str(write_training_plan(tmp_path))),
    ):
        done = trapped.run(*warm_command("-P", "-m", "redhost", *command, "--workers", "2"))
        assert (done.returncode, trapped.sprung) == (0, []), done.stderr


def test_commands_of_plugins(
    trapped: Trapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that start processes do it by these."""
    for name, value in trapped.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(trapped.folder)
    with serving(compose_home(tmp_path / "home").home) as process:
        assert process.url.startswith("http://127.0.0.1:")
    Site(tmp_path / "lab", backbone="tiny", router="evidence").switch("range1", on=False)
    for arguments in ("-c", "import json"), ("-m", "redhost", "--help"):
        subprocess.run(python_command(*arguments), check=True, capture_output=True)
    assert trapped.sprung == []


def test_serve_watch(trapped: Trapped, place: Environment) -> None:
    """It starts `redhost recompose`, `status` and `list-experts`."""
    command = [str(SCRIPT), "serve", "--port", "0", "--watch", "--backbone", "tiny-random"]
    environment = trapped.environment(PYTHONPATH=str(place.folder))
    with subprocess.Popen(
        command, cwd=trapped.folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as child:
        current, end = trapped.home / "generations" / "1", time.monotonic() + 120
        while not current.exists() and not trapped.sprung and time.monotonic() < end:
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert (current.exists(), trapped.sprung) == (True, []), child.stderr.read()
