"""Pages that name files, functions and limits: what they name is there."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from redhost.registry.package import manifest
from redhost.registry.package import safetensors_check as integrity

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ARCHITECTURE = (DOCS / "architecture.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py): ([\w.]+)`", ARCHITECTURE)))
PATH = re.compile(r"`((?:core|registry|commands|src)/[\w/]*(?:\.py)?)[:`]")
FILES = sorted(set(PATH.findall(ARCHITECTURE)))


def names_in(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield what a module defines, with a class's own names behind a dot."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name
            yield from names_in(node, f"{prefix}{node.name}.")


def test_the_walks_name_enough_to_be_worth_checking() -> None:
    assert len(NAMED) > 40 and len(FILES) > 60


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{p}:{n}" for p, n in NAMED])
def test_what_the_architecture_names_is_there(path: str, name: str) -> None:
    assert name in set(names_in(ast.parse((ROOT / path).read_text("utf-8"))))


@pytest.mark.parametrize("path", FILES)
def test_files_of_the_architecture_are_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_limits_in_the_security_page_are_the_codes_own() -> None:
    text = " ".join((DOCS / "security.md").read_text("utf-8").split())
    mebibyte = 2**20
    assert f"{manifest.MAX_BYTES // mebibyte} MiB for a manifest" in text
    assert f"{integrity.MAX_FILE // mebibyte} MiB for each file of an expert" in text
    header = f"{integrity.MAX_HEADER // mebibyte} MiB and {integrity.MAX_TENSORS:,} tensors"
    assert f"{header} for a safetensors header" in text


def test_the_results_index_leads_to_every_page_of_results() -> None:
    folder = DOCS / "results"
    index = (folder / "README.md").read_text("utf-8")
    pages = {p.relative_to(folder).as_posix() for p in folder.glob("*/**/README.md")}
    assert pages - set(re.findall(r"\]\(([^)#]+)\)", index)) == set()


@pytest.mark.parametrize(
    ("page", "file"), [("changelog", "CHANGELOG"), ("contributing", "CONTRIBUTING")]
)
def test_the_site_shows_files_of_the_root_with_links_that_resolve(page: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location("root_pages", DOCS / "root_pages.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    config = SimpleNamespace(config_file_path=str(ROOT / "mkdocs.yml"))

    def shown(source: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
        return hook.on_page_markdown("its own", page=page, config=config, files=None)

    assert shown("faq.md") == "its own"
    text = shown(f"{page}.md")
    assert text.splitlines()[:2] == (ROOT / f"{file}.md").read_text("utf-8").splitlines()[:2]
    links = [x for x in re.findall(r"\]\(([^)#]+)", text) if "://" not in x]
    assert [x for x in links if not (DOCS / x).exists()] == []
    assert page != "changelog" or "contributing.md" in links
