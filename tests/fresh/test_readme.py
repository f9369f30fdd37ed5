"""README's way with pip: its commands, typed as they stand there, in a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pages.page import read_page

ROOT = Path(__file__).parents[2]


def copy_of_the_tree(folder: Path) -> Path:
    """Copy what git tracks or would track, links as links, with this environment as its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def test_the_commands_of_the_readme_install_and_answer(tmp_path: Path) -> None:
    [block] = [b.text for b in read_page("README.md").blocks("sh") if "make index" in b.text]
    clone = copy_of_the_tree(tmp_path / "clone")
    # The environment that makes the wheels is there already: what is tested is the new one.
    typed = block.replace("make index", "make -o .venv/demo index")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "REDHOST"))}
    done = subprocess.run(
        ["sh", "-ec", typed],
        cwd=clone,
        check=False,
        capture_output=True,
        text=True,
        env={**env, "OMP_NUM_THREADS": "1", "REDHOST_CONFIG": str(tmp_path / "config")},
    )
    assert done.returncode == 0, done.stderr
    assert "What is 37 plus 12? → 49" in done.stdout
    packages = {p.name for p in (clone / "dist/simple").iterdir() if p.is_dir()}
    projects = [p.parent.name for p in (ROOT / "plugins").glob("*/pyproject.toml")]
    assert packages == {"redhost", *projects}


def test_the_catalogue_is_made_where_only_the_demo_is_installed(
    install: Any, tmp_path: Path
) -> None:
    fresh = install("redhost-author", "redhost-words")
    shutil.copytree(fresh.index.parent, tmp_path / "dist")
    makes = ["make", "-n", "-o", ".venv/demo", "index", f"BIN={fresh.folder / 'bin'}"]
    shown = subprocess.run(makes, cwd=ROOT, check=True, capture_output=True, text=True)
    [line] = [line for line in shown.stdout.splitlines() if "redhost_index" in line]
    line = line.replace(" dist", f" {tmp_path / 'dist'}")
    done = fresh.type(line, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dist/catalogue.json").stat().st_size > 0
