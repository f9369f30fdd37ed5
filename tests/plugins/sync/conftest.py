"""A project that was composed and exported, and an environment that has lost its expert."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TEXTS = ("What is 37 plus 12?", "What is 50 plus 49?", "What is 8 plus 9?")
DIST = "red-expert-extra"


@dataclass
class Project:
    """What one environment composed and wrote down, for another to rebuild."""

    venv: Any
    home: Path
    wheels: Path
    out: Path
    answers: Any
    exported: Any

    def clone(self, folder: Path) -> Path:
        """Return a home with the lock alone, as version control has it."""
        folder.mkdir()
        shutil.copy(self.home / "redhost.lock", folder)
        return folder

    def sync(self, home: Path, *options: str) -> Any:
        return self.venv.run("sync", *options, home=home)

    def predict(self, home: Path) -> Any:
        done = self.venv.run("predict", "--json", *TEXTS, home=home)
        assert done.returncode == 0, done.stderr
        return [{**x, "generation": None} for x in json.loads(done.stdout)]

    def infos(self) -> list[str]:
        return sorted(p.name for p in self.venv.site.iterdir() if p.name != "real.pth")

    def empty(self) -> None:
        """Remove what was installed beside the packages that tests share."""
        for path in self.venv.site.iterdir():
            if path.name not in SHARED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


SHARED = {"real.pth", "__pycache__"}


@pytest.fixture(scope="module")
def composed(make_venv: Any, draft: Any, tmp_path_factory: Any) -> Project:
    folder = tmp_path_factory.mktemp("project")
    venv, home = make_venv(folder / "venv"), folder / "home"
    (wheels := folder / "wheels").mkdir()
    draft("extra").write(wheels)
    session = (
        ("add", DIST, "--find-links", str(wheels)),
        ("export-wheels", str(folder / "out"), "--only-named", "--json"),
    )
    done = venv.session(*session, home=home)
    assert [code for code, _, _ in done] == [0, 0], done
    assert "MiB as installed, the largest: " in done[1][2]  # JSON alone on stdout
    made = Project(venv, home, wheels, folder / "out", None, json.loads(done[1][1]))
    made.answers = made.predict(home)
    return made


@pytest.fixture
def project(composed: Project) -> Iterator[Project]:
    """The project, in an environment without its own expert."""
    composed.empty()
    yield composed
    composed.empty()
