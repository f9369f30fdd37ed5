"""What packages say of themselves: nobody is sent to a project that is not ours."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import redhost_author

from redhost.cli import cli

ROOT = Path(__file__).parents[1]
INDEX = re.compile(r"pypi\.org/project/red|pip install red-")


def test_no_shipped_package_names_a_project_of_an_index() -> None:
    for pattern in ("README.md", "pyproject.toml"):
        for path in (ROOT / pattern, *(ROOT / "plugins").glob(f"*/{pattern}")):
            assert not INDEX.search(path.read_text("utf-8")), path


def test_a_new_project_says_that_pip_installs_it_alone(tmp_path) -> None:
    redhost_author.write_project(tmp_path, kind="expert", package_id="mine", summary="Mine")
    for page in (tmp_path / "README.md", ROOT / "plugins/red-expert-range3/README.md"):
        text = page.read_text("utf-8")
        assert "no dependencies" in text and "redhost, a backbone and its experts" in text
        assert not INDEX.search(text)


def test_a_new_project_says_in_two_lines_how_a_version_is_called_back(tmp_path) -> None:
    for kind in ("backbone", "expert"):
        redhost_author.write_project(tmp_path, kind=kind, package_id="mine", summary="Mine")
        last = (tmp_path / "README.md").read_text("utf-8").rstrip().rpartition("\n\n")[2]
        assert last.count("\n") == 1 and "yank it on the index" in last
        assert not re.search(r"pypi|github|redhost-|red-(?!(backbone|expert)-mine)", last.lower())


def test_readme_names_no_command_that_a_plain_install_lacks_without_its_package() -> None:
    """A plain install has the built-in commands; a package's come with the package."""
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    sentences = readme.partition("`redhost --help` lists the rest")[2].partition("Most commands")[0]
    builtin, _, others = sentences.partition("other packages")
    assert {*re.findall(r"`([a-z-]+)`", builtin)} <= cli.commands.keys()
    for command, dist in re.findall(r"`([a-z-]+)` (?:comes )?with `(redhost-[a-z]+)`", others):
        assert command not in cli.commands
        project = tomllib.loads((ROOT / "plugins" / dist / "pyproject.toml").read_text("utf-8"))
        assert command in project["project"]["entry-points"]["redhost.commands"]
    assert "`serve`" in others and "`explain`" in others


def test_readme_says_what_the_law_of_no_harm_covers_and_the_comparison_tells_against_us() -> None:
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert "withdrawn, not refused: the receipt says what its domain loses" in readme
    rows = (ROOT / "docs/comparison.md").read_text("utf-8").partition("others are ahead")[2]
    for row in ("billion", "GPU", "KV cache", "kernels", "quantised", "revoked", "catalogue"):
        assert row in rows
    assert "third parties" in rows
