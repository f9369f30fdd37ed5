"""The page at /, in a real Chromium: by keyboard alone, in light and dark, at phone width."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

TEXT = "What is 37 plus 12?"

NAME = """() => {
  const e = document.activeElement;
  return e.getAttribute("aria-label") ?? e.getAttribute("aria-labelledby")
    ?? e.labels?.[0]?.textContent ?? e.textContent.trim();
}"""
OUTLINE = """() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle + style.outlineWidth;
}"""


def ask(page: Page, text: str) -> None:
    page.get_by_label("A text to answer").fill(text)
    page.get_by_role("button", name="Ask").click()


def test_it_shows_what_is_served_and_from_where(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    expect(page.locator("#state")).to_have_text("ready, generation 2")
    expect(page.locator("#now")).to_contain_text("parents1")
    row = page.get_by_role("row", name=re.compile("^range3 "))
    expect(row).to_contain_text("attached")
    head = page.locator("#generations-head th")
    assert head.all_inner_texts()[-5:] == [f"range{n}" for n in range(1, 6)]
    expect(page.get_by_role("row", name=re.compile(r"^2 \(served\) 1 centroid"))).to_be_visible()
    assert open_page.errors == []


def test_a_question_shows_the_answer_and_the_weights_as_bars(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    ask(page, TEXT)
    expect(page.locator("#label")).to_have_text("49")
    expect(page.locator("#sure")).to_contain_text("by generation 2")
    first = page.locator("#weights li").first
    expect(first).to_contain_text("range3")
    full = first.locator(".track").bounding_box()["width"]
    assert first.locator(".bar").bounding_box()["width"] > 0.9 * full
    last = page.locator("#weights li").last.locator(".bar")
    assert last.evaluate("e => e.getBoundingClientRect().width") < 0.1 * full


@pytest.mark.parametrize("none", [0, -1e-9, 1e-300])
def test_a_weight_of_nothing_is_no_bar(open_page, read_only_url, none) -> None:
    page = open_page(read_only_url)
    columns = {"columns": ["one", "none"]}
    reply = {
        "outputs": [
            {"name": "label", "data": ["49"]},
            {"name": "declined", "data": [False]},
            {"name": "weights", "data": [1, none], "parameters": columns},
        ],
        "model_version": "2",
    }
    page.route("**/infer", lambda route: route.fulfill(json=reply))
    ask(page, TEXT)
    last = page.locator("#weights li").last
    expect(last.locator(".amount")).to_have_text("0.000")
    assert last.locator(".bar").evaluate("e => e.getBoundingClientRect().width") < 1
    ground = "e => getComputedStyle(e).backgroundColor"
    assert last.locator(".track").evaluate(ground) == "rgba(0, 0, 0, 0)"


def test_experts_of_another_backbone_are_folded_away(
    redhost_fake_expert, open_page, read_only_url
) -> None:
    redhost_fake_expert("apples")
    page = open_page(read_only_url)
    expect(page.locator("#elsewhere-title")).to_have_text("1 more for other backbones: tiny-random")
    row = page.get_by_role("row", name=re.compile("^apples "))
    expect(row).to_be_hidden()
    page.locator("#elsewhere-title").click()
    expect(row).to_be_visible()
    assert page.locator("#experts tr").count() == 5 and page.locator(".bad").count() == 0


def test_without_experts_of_another_backbone_there_is_nothing_folded(
    open_page, read_only_url
) -> None:
    page = open_page(read_only_url)
    expect(page.locator("#elsewhere")).to_be_hidden()


def test_a_refused_question_says_why(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    page.get_by_label("A text to answer").evaluate("e => e.removeAttribute('maxlength')")
    ask(page, "a" * 5000)
    expect(page.locator("#ask-problem")).to_contain_text("length <= 4096")
    assert page.locator("#answer").is_hidden()


def test_a_declined_text_has_no_label(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    reply = {
        "outputs": [
            {"name": "label", "data": ["none"]},
            {"name": "declined", "data": [True]},
            {"name": "weights", "data": [1], "parameters": {"columns": ["one"]}},
        ],
        "model_version": "2",
    }
    page.route("**/infer", lambda route: route.fulfill(json=reply))
    ask(page, TEXT)
    expect(page.locator("#label")).to_have_text("declined")


def test_what_comes_from_elsewhere_is_text_and_never_markup(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    evil = "<img src=x onerror=alert(1)>"
    reply = {
        "outputs": [
            {"name": "label", "data": [evil]},
            {"name": "declined", "data": [False]},
            {"name": "weights", "data": [1], "parameters": {"columns": [evil]}},
        ],
        "model_version": evil,
    }
    page.route("**/infer", lambda route: route.fulfill(json=reply))
    ask(page, TEXT)
    expect(page.locator("#label")).to_have_text(evil)
    assert page.locator("img").count() == 0


def test_without_admin_nothing_can_be_changed(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    assert page.get_by_label("Token, for changes").is_hidden()
    assert page.get_by_role("button", name=re.compile("Serve generation")).count() == 0


def test_swap_and_roll_back_by_keyboard_alone(open_page, url, token) -> None:
    page = open_page(url)

    def tab_to(name: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            label = page.evaluate(NAME)
            if label == name:
                return
        raise AssertionError(f"{name!r} cannot be reached")

    tab_to("Skip to the question")
    tab_to("A text to answer")
    page.keyboard.type(TEXT)
    page.keyboard.press("Enter")
    expect(page.locator("#label")).to_have_text("49")
    tab_to("Token, for changes")
    page.keyboard.type(token)
    tab_to("Serve generation 1")
    page.keyboard.press("Enter")
    expect(page.locator("#change")).to_have_text("Generation 1 is served; before it was 2.")
    expect(page.locator("#state")).to_have_text("ready, generation 1")
    expect(page.get_by_role("button", name="Roll back to the parent")).to_be_disabled()
    page.get_by_role("button", name="Serve generation 2").click()
    expect(page.locator("#state")).to_have_text("ready, generation 2")
    page.get_by_role("button", name="Roll back to the parent").click()
    expect(page.locator("#state")).to_have_text("ready, generation 1")


def test_a_wrong_token_changes_nothing_and_says_so(open_page, url) -> None:
    page = open_page(url)
    page.get_by_label("Token, for changes").fill("wrong")
    page.get_by_role("button", name="Serve generation 1").click()
    expect(page.locator("#change-problem")).to_have_text("the token is missing or wrong")
    expect(page.locator("#state")).to_have_text("ready, generation 2")


def test_it_loads_from_nobody_but_its_own_server(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    ask(page, TEXT)
    expect(page.locator("#label")).to_have_text("49")
    assert all(url.startswith((read_only_url, "data:")) for url in open_page.requested)
    assert open_page.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 700, 1280])
def test_it_fits_and_can_be_read(open_page, url, scheme, width) -> None:
    page = open_page(url, color_scheme=scheme, viewport={"width": width, "height": 800})
    ask(page, TEXT)
    expect(page.locator("#label")).to_have_text("49")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for table in page.locator(".wide").all():  # nothing to scroll sideways either
        assert table.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    assert page.evaluate(CONTRAST) == []


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => {
    const [r, g, b] = parse(c).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (parse(c)[3] !== 0) return c;
    }
    return "rgb(255, 255, 255)";
  };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.disabled) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${e.tagName} ${e.textContent} ${ratio.toFixed(2)}`);
  }
  return low;
}"""
"""Every text whose contrast with what is behind it is below 4.5 (WCAG 2.2, 1.4.3)."""


def test_low_contrast_would_be_seen(open_page, read_only_url) -> None:
    """Control."""
    page = open_page(read_only_url)
    page.evaluate("document.documentElement.style.setProperty('--quiet', '#aaaaaa')")
    assert page.evaluate(CONTRAST) != []


def test_whatever_takes_the_focus_shows_it_and_has_a_name(open_page, url) -> None:
    page = open_page(url)
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(NAME), page.evaluate(OUTLINE)
        if page.evaluate("document.activeElement === document.body"):
            break
        seen.append(name)
        assert name and outline == "solid3px", name
    assert len(seen) >= 7


def test_a_server_that_is_gone_is_reported(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    page.route("**/v1/*", lambda route: route.abort())
    expect(page.locator("#state")).to_contain_text("Not reachable", timeout=10_000)
