"""Figures in prose are those of a results file, or say why they are none of ours."""

from __future__ import annotations

from typing import Any

import pytest
from pages.figures import Figure, figures_in, figures_of, results_near
from pages.page import Page, all_pages

GENERATED = ("docs/results/", "docs/reference/")  # compared with their files by tests of their own
NOTEBOOKS = ("CHANGELOG.md", "docs/lab-notes.md")  # measurements of a day, with their date
PAGES = [
    page
    for page in all_pages()
    if page.name not in NOTEBOOKS and not page.name.startswith(GENERATED)
]


def unexplained(page: Page, allowed: dict[str, Any]) -> list[Figure]:
    """Return the figures of a page that neither a results page nearby nor the list has."""
    near = results_near(page)
    listed = {f for entry in allowed["figures"] if entry["page"] == page.name for f in entry["are"]}
    return [f for f in figures_of(page) if f.text not in listed and f.text not in near[f.line]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_comes_from_somewhere(page: Page, allowed: dict[str, Any]) -> None:
    assert not unexplained(page, allowed)


def test_the_list_has_nothing_left_over(allowed: dict[str, Any]) -> None:
    every = {page.name: {f.text for f in figures_of(page)} for page in PAGES}
    for entry in allowed["figures"]:
        assert entry["why"]
        assert set(entry["are"]) <= every[entry["page"]], entry


def test_another_figure_than_the_results_have_is_noticed() -> None:
    text = "# A\nAlone it is right in {} of the cases ([figures](results/heads/README.md)).\n"
    nothing: dict[str, Any] = {"figures": []}
    assert not unexplained(Page("docs/x.md", text.format("0.8194")), nothing)
    [found] = unexplained(Page("docs/x.md", text.format("0.8216")), nothing)
    assert (found.line, found.text) == (2, "0.8216")


def test_a_figure_needs_its_results_in_its_own_section() -> None:
    text = "# A\n[figures](results/heads/README.md)\n# B\nIt is 0.8194.\n"
    assert unexplained(Page("docs/x.md", text), {"figures": []})


def test_figures_of_generated_blocks_are_compared_elsewhere() -> None:
    text = "<!-- results: x -->\n| 0.5 |\n<!-- /results -->\nand .25\n"
    assert [f.text for f in figures_of(Page("x.md", text))] == ["0.25"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from 0.5 to .25, or 12 %", ["0.5", "0.25", "12%"]),
        ("77.5%: 1,234.5 rows", ["77.5%", "1,234.5"]),
        ("torch 2.13.0, v1.2 and section 4.4.3", []),
        ("`0.5` and [a](b-0.5.md), 500 kills, 2e-3", []),
        ("it is .9.", ["0.9"]),
    ],
)
def test_figures_are_found(text: str, found: list[str]) -> None:
    assert figures_in(text) == found
