"""A real environment with a backbone and two experts from wheels, and a home composed of them."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redhost_author.testing import expert_project
from redhost_author.wheels import build_wheel
from warm_start import warm_command

from redhost.registry.home.revoked import Revocation, Revocations, RevokedList
from redhost.registry.home.store import Store
from redhost.testing import Environment

Finding = dict[str, str]
PYTHON = "@python@"
FRESH = {"PYTHONUTF8": "1"}
"""With this variable a command starts a Python of its own: a warm one has the server's mounts."""


@dataclass(frozen=True)
class World:
    """An environment, its home, and the wheels that it was made from."""

    folder: Path
    wheels: Path

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def site(self) -> Path:
        return next((self.folder / "venv" / "lib").glob("python*")) / "site-packages"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def shell(
        self, command: str, *, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run what a user types, with the environment's own commands first on the path.

        Its pip starts warm, as `redhost` does.
        """
        cold = f"{self.bin}/python", "-P", "-m", "pip"
        warm = warm_command(*cold[1:], python=cold[0])
        settings = {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "REDHOST_HOME": str(self.home),
            "REDHOST_CONFIG": str(self.folder / "config"),
            "OMP_NUM_THREADS": "1",
            "PIP_CONFIG_FILE": os.devnull,
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
        return subprocess.run(
            ["bash", "-c", command.replace(shlex.join(cold), shlex.join(warm))],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**inherited, **settings, **(env or {})},
        )

    def run(self, command: str, *, env: Mapping[str, str] | None = None) -> str:
        """Run what a user types, and return what it prints; it has to succeed."""
        done = self.shell(command, env=env)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def doctor(
        self, arguments: str, *, env: Mapping[str, str] | None = None, before: str = "true"
    ) -> list[Finding]:
        """Return what the doctor finds, after a command in the same shell."""
        done = self.shell(
            f"{{ {before}; }} > /dev/null && redhost doctor --json {arguments}", env=env
        )
        assert done.returncode in {0, 1} and done.stdout, (before, done.stderr)
        examination = json.loads(done.stdout)
        failures = [f for f in examination["findings"] if f["state"] == "fail"]
        assert (done.returncode, examination["ok"]) == (int(bool(failures)), not failures)
        found: list[Finding] = examination["findings"]
        return found

    def mended(
        self, arguments: str, *, env: Mapping[str, str] | None = None, state: str = "fail"
    ) -> Finding:
        """Find exactly one fault, run the command that mends it, and find it gone."""
        [fault] = [f for f in self.doctor(arguments, env=env) if f["state"] != "ok"]
        assert fault["state"] == state, fault
        assert bool(fault["mend"]) != bool(fault["next"]), fault
        command = fault["mend"] or fault["next"].replace(" --dry-run", "")
        after = self.doctor(arguments, env=env, before=command)
        assert {f["state"] for f in after} == {"ok"}, (fault, after)
        return fault

    def run_mounting(self, script: Path, *, env: Mapping[str, str] | None = None) -> list[str]:
        """Run a script that may mount what only it sees; return the lines that it prints."""
        return self.run(f"unshare -rm sh {script}", env={**FRESH, **(env or {})}).splitlines()

    def pip(self, arguments: str) -> str:
        """Run the environment's pip, which finds the wheels and no index."""
        pip = shlex.join(warm_command("-m", "pip", "-q", python=f"{self.bin}/python"))
        return self.run(f"{pip} {arguments}", env=self.offline)

    @property
    def offline(self) -> dict[str, str]:
        """Settings with which pip finds the wheels, and no index."""
        return {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }

    @property
    def members(self) -> list[str]:
        """The experts that are composed."""
        status: dict[str, Any] = json.loads(self.run("redhost status --json"))
        return list(status["experts"])

    def stored(self, name: str) -> Path:
        """Return the folder of an expert's composed copy."""
        lock = json.loads((self.home / "redhost.lock").read_text())
        return self.home / "store" / str(lock["experts"][name]["digest"])

    def stored_in(self, question: str, name: str) -> Path:
        """Return the folder of an expert's composed copy, of a named question."""
        lock = json.loads((self.home / "questions" / question / "redhost.lock").read_text())
        return self.home / "store" / str(lock["experts"][name]["digest"])

    def why(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run(f"redhost why {name} --json"))
        return answer


def flip(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="session")
def flip_byte() -> Callable[[Path], None]:
    """Return the function that changes a byte of a file."""
    return flip


@pytest.fixture(scope="session")
def revoke() -> Callable[[World, str], None]:
    """Return the function that lets a home know that a digest is revoked."""

    def write(world: World, digest: str) -> None:
        entry = Revocation(digest=digest, reason="leaks rows", revoked_at="2026-11-28")
        lists = {"key": RevokedList(serial=1, entries=(entry,))}
        Store(world.home).write_revocations(Revocations(lists=lists))

    return write


@pytest.fixture(scope="session")
def hijack() -> Callable[[World], None]:
    """Return the function that installs `copy`, refused: pears under other labels."""

    def install(world: World) -> None:
        module = world.site / "red_expert_copy"
        shutil.copytree(world.site / "red_expert_apples", module)
        manifest = json.loads((module / "expert.json").read_text())
        card = module / str(manifest["card"]["file"])
        texts = (world.site / "red_expert_pears" / card.name).read_text().splitlines()
        rows = zip(card.read_text().splitlines(), texts, strict=True)
        made = ({**json.loads(own), "text": json.loads(text)["text"]} for own, text in rows)
        card.write_text("".join(f"{json.dumps(row)}\n" for row in made))
        reference = {**manifest["card"], "sha256": hashlib.sha256(card.read_bytes()).hexdigest()}
        (module / "expert.json").write_text(
            json.dumps({**manifest, "id": "copy", "card": reference})
        )
        entries = {"redhost.experts": "copy = red_expert_copy"}
        Environment(world.site).write_info("red-expert-copy", "0.1.0", module.name, entries)

    return install


@pytest.fixture(scope="session")
def stub_wheel() -> Callable[..., Path]:
    """Return the function that writes a wheel with a name, a version, and few files or none."""

    def write(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
        info = f"{name}-{version}.dist-info"
        members = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        path = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in members.items():
                archive.writestr(member, text)
            archive.writestr(
                f"{info}/RECORD", "".join(f"{m},,\n" for m in (*members, f"{info}/RECORD"))
            )
        return path

    return write


@pytest.fixture(scope="session")
def wheels(redhost_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels of a backbone and of experts for it; those of later versions have other weights."""
    folder = tmp_path_factory.mktemp("wheels")
    made = {"backbone": build_wheel(redhost_backbone, folder)}
    for name, expert_id, seed in (
        ("apples", "apples", 0),
        ("pears", "pears", 1),
        ("new", "apples", 2),
    ):
        project = folder / name / f"red-expert-{expert_id}"
        expert_project(project, expert_id, redhost_backbone, labels=(name, f"no {name}"), seed=seed)
        if name == "new":
            file = project / "pyproject.toml"
            file.write_text(file.read_text().replace('version = "0.1.0"', 'version = "0.2.0"'))
        made[name] = build_wheel(project, folder)
    return made


@pytest.fixture(scope="session")
def template(
    make_venv: Callable[[Path], Any],
    wheels: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    """The environment that is copied for each test."""
    folder = tmp_path_factory.mktemp("world")
    venv = make_venv(folder / "venv")
    command = shlex.join(warm_command("-m", "redhost", python=PYTHON))
    program = folder / "venv" / "bin" / "redhost"
    start = command.replace(PYTHON, '"$(dirname "$0")/python"')
    program.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    program.chmod(0o755)
    done = venv.install(*(wheels[n] for n in ("backbone", "apples", "pears")))
    assert done.returncode == 0, done.stderr
    world = World(folder, wheels["backbone"].parent)
    world.run("redhost recompose --backbone tiny-random")
    return world


@pytest.fixture
def world(template: World, tmp_path: Path) -> World:
    """A copy of the environment and of its home."""
    folder = tmp_path / "world"
    shutil.copytree(template.folder, folder, symlinks=True)
    return World(folder, template.wheels)


@pytest.fixture
def bare_world(world: World) -> World:
    """The environment, with nothing composed."""
    shutil.rmtree(world.home)
    return world
