"""llms.txt: every page of the navigation once, under its section, with what it is about."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    return load("docs/llms.py")


@pytest.fixture
def site(tmp_path: Path) -> Any:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert "docs/llms.py" in settings["hooks"]
    settings |= {"config_file_path": str(ROOT / "mkdocs.yml"), "site_dir": str(tmp_path)}
    settings["hooks"] = {name: load(name) for name in settings["hooks"]}
    return SimpleNamespace(**{**settings, "docs_dir": str(ROOT / "docs")})


def test_every_page_of_the_navigation_is_listed_once(hook: ModuleType, site: Any) -> None:
    hook.on_post_build(config=site)
    text = (Path(site.site_dir) / "llms.txt").read_text("utf-8")
    named = re.findall(r"[\w/.-]+\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\.html\)", text, re.MULTILINE)
    pages = [
        re.sub("README$", "index", n.removesuffix(".md")) for n in named if n != "lab-notes.md"
    ]
    assert listed == pages and len(pages) > 50
    assert text.startswith("# redhost\n\n> pip install an expert;")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[:3] == ["Begin", "Ship", "Run"] and len(sections) == len(set(sections))
    assert "- [Tutorial](tutorial.html): " in text
    with_sentence = re.findall(r"^- .*\.html\): \S", text, re.MULTILINE)
    assert len(with_sentence) > 0.8 * len(listed)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("# A\n\nOne [two](x.md) three. Four.\n", "One two three."),
        (
            "# A\n\n![picture](a.png)\n\n| a |\n|---|\n\nIn 2.5 s it\nends. No\n",
            "In 2.5 s it ends.",
        ),
        ("# A\n\n**Bold claim.** More\n", "Bold claim."),
        ("# A\n\n- a list\n", ""),
        ("# A\n\nThree of them:\n\n- one\n", "Three of them"),
        ("# A\n\n## A question?\n\nAn answer.\n", ""),
    ],
)
def test_the_first_sentence_of_prose_says_what_a_page_is_about(
    hook: ModuleType, page: str, sentence: str
) -> None:
    assert hook.first_sentence(page) == sentence
