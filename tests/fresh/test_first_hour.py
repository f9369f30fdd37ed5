"""The first hour, on wheels alone: README's tour and the tutorial, typed as they are printed.

tests/docs/typed types every page beside this tree, whose code it uses. Here nothing but wheels is
installed, and pip has no index: what a page needs has to come with `redhost[author]`.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from pages.commands import Command, commands_of, shows
from pages.page import Block, read_page
from pages.python import unbound

from .conftest import PINNED, ROOT

DATA = ("red-backbone-tiny", *(f"red-expert-range{n}" for n in range(1, 6)))
MADE = ("red-expert-smalltalk", "red-expert-prices", "red-backbone-mine", "red-backbone-retail")
"""What the pages install."""


def ours(extra: str) -> list[str]:
    """Return the packages of this project that an extra brings."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [Requirement(line).name for line in table["optional-dependencies"][extra]]
    return [name for name in names if (ROOT / "plugins" / name).is_dir()]


@pytest.fixture(scope="module")
def of_author(fresh: Any) -> Iterator[Any]:
    """The environment as README's second way leaves it, with the extra of authors."""
    before = fresh.installed()
    fresh.install(*ours("author"), *DATA)
    fresh.pip("install", "-q", *PINNED, "redhost[author]")
    yield fresh
    # Libraries too: other tests compare what is there with what the host asks for.
    fresh.pip("uninstall", "-q", "-y", *(fresh.installed() - before))


@pytest.fixture
def equipped(of_author: Any) -> Iterator[Any]:
    """The same, whatever a page before has installed or taken away."""
    yield of_author
    of_author.pip("uninstall", "-q", "-y", *MADE)
    if missing := {*DATA} - of_author.installed():
        of_author.install(*sorted(missing))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the rows that README's reader has."""
    phrases = {"greeting": ("hello", "good morning"), "farewell": ("goodbye", "good night")}
    rows = [
        {"text": f"{words} {n}", "label": label}
        for n in range(100)
        for label, several in phrases.items()
        for words in several
    ]
    work = tmp_path / "work"
    work.mkdir()
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (work / "smalltalk.jsonl").write_text(lines, "utf-8")
    return work


def steps_of(name: str) -> list[Command | Block]:
    """Return a page's commands and complete Python blocks, in their order."""
    page = read_page(name)
    blocks = [b for b in page.blocks("python") if not unbound(b.text)]
    return sorted([*commands_of(page), *blocks], key=lambda step: step.line)


def test_nothing_of_this_tree_is_used(equipped: Any, folder: Path) -> None:
    program = "import sys, redhost, redhost_words, red_backbone_tiny; print(*sys.path, sep='\\n')"
    done = equipped.type(f'python -c "{program}"', cwd=folder)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout
    assert equipped.type("redhost --version", cwd=folder).returncode == 0
    for name in ("redhost", "pip", "python"):
        found = equipped.type(f"command -v {name}", cwd=folder).stdout.strip()
        assert found == str(equipped.folder / "bin" / name)


@pytest.mark.parametrize(("name", "least"), [("README.md", 10), ("docs/tutorial.md", 20)])
def test_what_a_page_prints_can_be_typed(
    name: str, least: int, equipped: Any, folder: Path
) -> None:
    steps = steps_of(name)
    assert len(steps) >= least
    for step in steps:
        where = f"{name}:{step.line}: {step.text}"
        if isinstance(step, Block):
            (folder.parent / "program.py").write_text(step.text, "utf-8")
            done = equipped.type(f"python {folder.parent}/program.py", cwd=folder)
        else:
            done = equipped.type(step.text, cwd=folder, PIP_NO_INDEX="1")
        assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
        if isinstance(step, Command):
            assert shows(done.stdout, step.output), f"{where}\nprints\n{done.stdout}"


def test_the_site_begins_with_the_page_that_is_typed_here() -> None:
    [link] = [line for line in (ROOT / "docs/index.md").read_text("utf-8").split() if "](" in line]
    assert "../README.md" in link and not list(read_page("docs/index.md").blocks("console"))


@pytest.mark.parametrize("kind", ["form", "router", "task"])
def test_a_new_plugin_works_as_its_readme_says(kind: str, equipped: Any, folder: Path) -> None:
    """Written, installed by pip, tested by its own test, and used by the verbs it is for."""

    def must(command: str, cwd: Path) -> None:
        done = equipped.type(command, cwd=cwd)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    must("pip install -q pytest", folder)
    must(f"redhost new-plugin mine --kind {kind}", folder)
    must(
        "python -c \"from redhost.testing import tiny_backbone; tiny_backbone('encoder')\"", folder
    )
    rows = [{"text": f"{'abcde'[n % 5] * 4} {n}", "label": str(n % 5 + 1)} for n in range(200)]
    (folder / "ROWS.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows), "utf-8")
    project = folder / "redhost-mine"
    readme = (project / "README.md").read_text("utf-8")
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
    assert commands[0] == "pip install -e ." and commands[1].startswith("redhost trust ")
    try:
        must(commands[0], project)
        # -B: pytest would leave what it rewrites of its plugins, as redhost-author is one.
        must("python -B -m pytest -q -p no:cacheprovider", project)
        for command in commands[1:]:
            must(command.replace("BACKBONE", "tiny").replace("FOLDER", "encoder"), folder)
    finally:
        must("pip uninstall -q -y redhost-mine", folder)
        shutil.rmtree(project)
