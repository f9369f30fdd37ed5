"""Files for those who find the repository: policies, forms, a citation, and rules for agents."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages.links import anchors, links_of
from pages.page import Page, read_page

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MOST = {"AGENTS.md": 200, "CODE_OF_CONDUCT.md": 80, "SECURITY.md": 150, "docs/assurance.md": 350}
TEMPLATE = ".github/pull_request_template.md"
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
ELEMENTS = {"checkboxes", "dropdown", "input", "markdown", "textarea"}
NAMED = re.compile(r"`((?:tests|tools|core|registry|docs|src)/[^`\s]+|[\w.]+\.(?:md|toml|txt))`")
TARGETS = re.compile(r"`make ([\w. /-]+)`")


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("name", [*MOST, TEMPLATE])
def test_links_files_and_targets_that_are_named_exist(name: str) -> None:
    page = read_page(name)
    for link in links_of(page):
        if not link.is_outside:
            assert link.path.is_file(), link.target
            target = read_page(link.path.resolve().relative_to(ROOT).as_posix())
            assert not link.anchor or link.anchor in anchors(target), link.target
    made = {"CHANGELOG.md", "SHA256SUMS"}
    for path in set(NAMED.findall(page.text)) - made - {"tests/PATH"}:
        assert (ROOT / path).exists() or [*ROOT.glob(f"docs/results/**/{path}")], path
    rules = re.findall(r"^([\w. /-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    assert {t for words in TARGETS.findall(page.text) for t in words.split()} <= targets


@pytest.mark.parametrize(("name", "most"), MOST.items())
def test_they_are_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= most


def test_no_address_is_invented() -> None:
    """There is no known address of the project: nobody is sent to one."""
    texts = [Page(n, (ROOT / n).read_text("utf-8")) for n in MOST]
    outside = {link.target for page in texts for link in links_of(page) if link.is_outside}
    assert all(link.startswith("https://www.contributor-covenant.org/") for link in outside)
    assert not [p.name for p in texts if re.search(r"[\w.]+@[\w.]+\.\w", p.text)]
    assert "urls" not in PROJECT


def test_the_citation_is_of_this_release() -> None:
    cited = read_yaml(ROOT / "CITATION.cff")
    required = {"cff-version", "message", "title", "authors"}
    assert required <= cited.keys() and cited["cff-version"] == "1.2.0"
    assert (cited["title"], cited["version"]) == (PROJECT["name"], PROJECT["version"])
    assert cited["license"] == PROJECT["license"]
    assert [a["name"] for a in cited["authors"]] == [a["name"] for a in PROJECT["authors"]]
    assert " ".join(cited["abstract"].split()) == PROJECT["description"]


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.name)
def test_an_issue_form_has_what_the_hosting_site_requires(path: Path) -> None:
    form = read_yaml(path)
    assert form["name"] and form["description"]
    fields = [e for e in form["body"] if e["type"] != "markdown"]
    assert {e["type"] for e in form["body"]} <= ELEMENTS
    assert all(e["attributes"]["label"] for e in fields)
    names = [e["id"] for e in fields]
    assert len(names) == len(set(names)) > 0
    assert any(e.get("validations", {}).get("required") for e in fields)


def test_there_is_a_form_for_bugs_and_one_for_features() -> None:
    assert [p.name for p in FORMS] == ["bug.yml", "feature.yml"]


def test_the_hosting_sites_runs_are_ours_under_every_python_of_the_classifiers() -> None:
    jobs = read_yaml(ROOT / ".github/workflows/ci.yml")["jobs"]
    runs = {name: job["steps"][-1]["run"] for name, job in jobs.items()}
    assert runs == {"ci": ".ci/run", "matrix": "make matrix PYTHONS=python"}
    first = jobs["ci"]["steps"][1]["with"]["python-version"]
    others = jobs["matrix"]["strategy"]["matrix"]["python"]
    line = "Programming Language :: Python :: "
    named = [c.removeprefix(line) for c in PROJECT["classifiers"] if c.startswith(line)]
    assert [first, *others] == named
    pinned = (ROOT / "constraints.txt").read_text("utf-8").partition("\n")[0]
    assert f"Python {first};" in pinned
