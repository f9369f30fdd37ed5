"""Every page of the documentation on a phone: nothing is cut, no name is broken, pictures show.

`make docs` builds what is looked at here; `make test-full` does so first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "build/site"
PAGES = sorted(p.relative_to(SITE).as_posix() for p in SITE.rglob("*.html"))
PHONE = {"width": 390, "height": 844}

FAULTS = """() => {
  const width = document.documentElement.clientWidth, faults = [];
  const whole = Math.max(document.documentElement.scrollWidth, document.body.scrollWidth);
  if (whole > width) faults.push(`the page is ${whole} wide`);
  const scrolls = (e) => {
    for (; e && e !== document.body; e = e.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(e).overflowX)) return true;
    return false;
  };
  for (const e of document.querySelectorAll(".md-content *"))
    if (e.checkVisibility() && e.getBoundingClientRect().right > width + 1 && !scrolls(e))
      faults.push(`cut: ${e.tagName} ${e.textContent.slice(0, 40)}`);
  const words = (root, what, right) => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());)
      for (const word of node.textContent.matchAll(/[\\p{L}\\p{N}_]+/gu)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const boxes = [...range.getClientRects()].filter((r) => r.width);
        if (new Set(boxes.map((r) => r.top)).size > 1)
          faults.push(`broken in a ${what}: ${word[0]}`);
        if (boxes.some((r) => r.right > right + 1)) faults.push(`cut in a ${what}: ${word[0]}`);
      }
  };
  document.querySelectorAll(".md-content :is(td, th)")
    .forEach((e) => words(e, "table", Infinity));
  const commands = ".md-content pre span:has(> .gp), .md-content .language-sh pre > code > span";
  for (const e of document.querySelectorAll(commands))
    words(e, "command", e.closest("code").getBoundingClientRect().right);
  for (const image of document.querySelectorAll(".md-content img")) {
    if (!image.alt.trim()) faults.push(`no words for ${image.src}`);
    if (!image.complete || !image.naturalWidth) faults.push(`not there: ${image.src}`);
  }
  return faults;
}"""
"""What is wrong with a page; a table or a box of code may scroll by itself."""


@pytest.fixture(scope="module")
def phone(browser):
    context = browser.new_context(viewport=PHONE)
    yield context.new_page()
    context.close()


def test_the_site_is_built() -> None:
    assert len(PAGES) > 50, "run `make docs`"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_on_a_phone(phone, name) -> None:
    phone.goto((SITE / name).as_uri())
    assert phone.evaluate(FAULTS) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("main.insertAdjacentHTML('beforeend', '<div style=\"width: 500px\">x</div>')", "wide"),
        ("main.insertAdjacentHTML('beforeend', '<img src=\"images/bus.svg\">')", "no words"),
        ("main.insertAdjacentHTML('beforeend', '<img alt=\"x\" src=\"no.png\">')", "not there"),
        (
            "main.insertAdjacentHTML('beforeend', '<table><tr><td style=\"display: block; "
            "width: 1em; word-break: break-all\">abcdefghijklm</td></tr></table>')",
            "broken in a table",
        ),
        (
            "for (const e of main.querySelectorAll('code > span')) e.style.whiteSpace = 'pre'",
            "cut in a command",
        ),
        ("", None),
    ],
)
def test_a_page_that_is_cut_or_broken_is_noticed(phone, change, fault) -> None:
    """Control."""
    phone.goto((SITE / "tutorial.html").as_uri())
    main = "const main = document.querySelector('.md-content article')"
    phone.evaluate(f"() => {{ {main}; {change} }}")
    phone.wait_for_timeout(100)
    faults = phone.evaluate(FAULTS)
    assert any(fault in x for x in faults) if fault else not faults


@pytest.mark.parametrize("name", ["index", "tutorial", "concepts", "serving"])
def test_there_is_a_picture_where_people_look(phone, name) -> None:
    phone.goto((SITE / f"{name}.html").as_uri())
    assert phone.locator(".md-content img").count() >= 1
