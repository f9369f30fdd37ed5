"""Studies that have been removed: pages name the commit that has the code, the index lists them."""

from __future__ import annotations

import re

import pytest
from pages.page import ARCHIVED, ROOT, archived_at

RESULTS = ROOT / "docs" / "results"
FOLDERS = [path.parent for path in sorted(RESULTS.rglob("README.md")) if archived_at(path.parent)]


def test_the_index_lists_exactly_the_archived_pages_with_their_commits() -> None:
    _, _, section = (RESULTS / "README.md").read_text("utf-8").partition("## Archived\n")
    listed = re.findall(
        r"^\| \[([\w-]+)\]\((\S+)/README\.md\) \| `lab (\S+)` \| (\S+) \|", section, re.M
    )
    assert listed == [(f.name, f.name, f.name, archived_at(f)) for f in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_an_archived_page_says_at_its_head_which_commit_has_the_code(folder) -> None:
    text = (folder / "README.md").read_text("utf-8")
    line = ARCHIVED.match(text.splitlines()[2])
    assert line and line["study"] == folder.name
    for picture in re.findall(r"\]\(([\w-]+\.svg)\)", text):
        assert (folder / picture).exists()
    assert (folder / "metrics.json").exists()
