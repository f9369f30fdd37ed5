"""A project's plan and its one package."""

from __future__ import annotations

import ast
import subprocess
import tomllib

import pytest
from redhost_author.project import (
    ExpertPlan,
    check_free,
    check_id,
    package_in,
    read_plan,
    write_plan,
    write_project,
)

from redhost.registry.errors import UsageError


@pytest.fixture
def project(tmp_path):
    write_project(tmp_path / "p", kind="expert", package_id="mine", summary='a "quoted" line')
    return tmp_path / "p"


def test_git_adds_all_but_wheels_and_state(project) -> None:
    for name in ("dist/mine.whl", ".redhost/current", "src/red_expert_mine/expert.safetensors"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    added = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=project,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert "src/red_expert_mine/expert.safetensors" in added
    assert not [name for name in added if name.startswith(("dist", ".redhost"))]


def test_a_plan_is_read_as_it_was_written(project) -> None:
    plan = ExpertPlan(id="mine", backbone="tiny", rank=4, writes="hidden", domain="sums: 'a'")
    write_plan(project, plan)
    assert read_plan(project) == plan


def test_the_package_is_the_one_under_src(project) -> None:
    assert package_in(project) == project / "src" / "red_expert_mine"
    (project / "src" / "second").mkdir()
    (project / "src" / "second" / "__init__.py").touch()
    with pytest.raises(UsageError, match="expected one package under src/, found 2"):
        package_in(project)


@pytest.mark.parametrize(
    ("package_id", "summary", "terms"),
    [
        ("v1.2", "an id with a dot", "MIT"),
        ("mine", "C:\\new and C:\\Users, 日本 😀", 'LicenseRef-"Own"'),
        ("mine", "two\nlines, \x1b[1mbold", "MIT"),
    ],
)
def test_whatever_an_author_says_the_project_can_be_built(
    tmp_path, package_id, summary, terms
) -> None:
    folder = write_project(
        tmp_path, kind="expert", package_id=package_id, summary=summary, license=terms
    )
    table = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    assert table["entry-points"] == {"redhost.experts": {package_id: folder.name}}
    assert table["license"] == terms and table["description"].isprintable()
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
    assert docstring == f"{table['description']} (data only)."


@pytest.mark.parametrize("text", [None, "not toml [", "[tool.redhost]\n", "tool = 3\n"])
def test_a_folder_without_a_plan_is_no_expert_project(tmp_path, text) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match="Make one with 'redhost new-expert NAME'"):
        read_plan(tmp_path)


def test_a_key_that_is_misspelt_is_reported_with_the_one_that_was_meant(project) -> None:
    write_plan(project, ExpertPlan(id="mine"))
    with (project / "pyproject.toml").open("a") as file:
        file.write("rnak = 3\n")
    with pytest.raises(UsageError, match="Did you mean 'rank'"):
        read_plan(project)


def test_a_new_project_replaces_nothing(project, tmp_path) -> None:
    check_free(tmp_path / "other")
    with pytest.raises(UsageError, match="is there already"):
        check_free(project)


@pytest.mark.parametrize("name", ["Upper", "../up", "backbone", "", "a" * 65, "-a"])
def test_what_cannot_be_an_id_is_refused(name) -> None:
    with pytest.raises(UsageError, match="cannot be an id"):
        check_id(name)
