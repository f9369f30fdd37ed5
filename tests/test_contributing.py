"""CONTRIBUTING.md: every recipe is carried out as it stands there, on a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CODE = ("core", "registry", "commands", "src", "tests/core", "tests/registry", "tests/support")

NO_OTHERS = ("-p", "no:schemathesis")  # which takes longer to import than these tests take


def blocks(heading: str) -> list[str]:
    """Return the Python of a section: whole pieces, and lines that a diff adds."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^```(?:python|diff)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [re.sub(r"^\+", "", block, flags=re.MULTILINE) for block in found]


def copied(folder: Path) -> Path:
    """Copy the code, with links as links, and its tests."""
    for name in CODE:
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("cli.py", "pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def insert(path: Path, text: str, *, before: str) -> None:
    """Put text before the first line that begins so."""
    head, found, rest = path.read_text("utf-8").partition(f"\n{before}")
    assert found, f"{path} has no line {before!r}"
    path.write_text(f"{head}\n{text}{before}{rest}", "utf-8")


def passed(tree: Path, *arguments: str) -> list[str]:
    """Run tests of the copy against the copy's code; return those that passed, where all did."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rpE", "-p", "no:cacheprovider", *NO_OTHERS, *arguments],
        cwd=tree,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout
    return re.findall(r"^PASSED (.+)$", done.stdout, re.MULTILINE)


def add_router_kind(tree: Path) -> None:
    source, test = blocks("Adding a router kind")
    (tree / "core/routers/manhattan.py").write_text(source, "utf-8")
    (tree / "tests/core/routers/test_manhattan.py").write_text(test, "utf-8")


def add_form(tree: Path) -> None:
    entry, rows = blocks("Adding an expert form")
    insert(tree / "registry/package/forms.py", entry, before='    "mlp": FormSpec')
    insert(tree / "tests/registry/package/test_forms.py", rows, before='        ("mlp", "logits"')


def add_check(tree: Path) -> None:
    source, line, test = blocks("Adding a check to the contract")
    fields, tests = (
        tree / "registry/package/rules.py",
        tree / "tests/registry/package/test_compatibility.py",
    )
    insert(fields, f"{source}\n\n", before="def check_valid")
    insert(fields, line, before="        *_form(manifest),")
    tests.write_text(f"{tests.read_text('utf-8')}\n\n{test}", "utf-8")


RECIPES = {
    # Its own test, and those of every kind: separable domains, same bits, all frozen, level `row`.
    "manhattan": ("core/routers/test_manhattan.py", "core/routers/test_routers.py"),
    # Its rows, and the tests of every form: it changes nothing at first, learns, and comes back.
    "gate": ("registry/package/test_forms.py", "core/bus/test_experts.py"),
    "is_a_sentence": ("registry/package/test_compatibility.py",),
}
"""Files of the tests that a recipe adds to, by what their names have."""


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tests of every recipe that passed on one copy of the tree: each run starts torch."""
    tree = copied(tmp_path_factory.mktemp("tree"))
    add_router_kind(tree)
    add_form(tree)
    add_check(tree)
    files = [f"tests/{name}" for names in RECIPES.values() for name in names]
    return passed(tree, *files, "-k", " or ".join(RECIPES))


@pytest.mark.parametrize(
    ("name", "count"),
    [("manhattan", range(5, 99)), ("gate", range(12, 99)), ("is_a_sentence", range(2, 3))],
)
def test_a_recipe_adds_what_it_says_and_its_tests(
    name: str, count: range, carried_out: list[str]
) -> None:
    for file in RECIPES[name]:
        assert [test for test in carried_out if test.startswith(f"tests/{file}::") and name in test]
    of_files = tuple(f"tests/{file}::" for file in RECIPES[name])
    assert len([t for t in carried_out if t.startswith(of_files) and name in t]) in count


def test_a_backbones_own_test(tmp_path: Path) -> None:
    [test] = blocks("Adding a backbone")
    tiny = ROOT / "plugins/red-backbone-tiny/src/red_backbone_tiny"
    shutil.copytree(tiny, tmp_path / "plugins/red-backbone-mini/src/red_backbone_mini")
    (tmp_path / "test_backbone_mini.py").write_text(test, "utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/redhost").symlink_to(ROOT / "src/redhost")
    assert len(passed(tmp_path, "test_backbone_mini.py")) == 1


NAMED = sorted(set(re.findall(r"`((?:tests|tools|core|registry|docs|src)/[^`\s]*)`", PAGE)))


@pytest.mark.parametrize("path", [p for p in NAMED if "manhattan" not in p and "mini" not in p])
def test_what_is_named_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {
        t for line in re.findall(r"^([\w -]+):", makefile, re.MULTILINE) for t in line.split()
    }
    result = re.findall(r"`make ((?:[\w-]+ ?)+)[`R]", PAGE)
    assert {name for words in result for name in words.split()} <= targets
