"""The page that shows routing as it happens, in a real Chromium."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect
from redhost_serve.client import Client

TEXTS = ["What is 37 plus 12?"] * 4


def test_it_is_reached_from_the_page_and_follows_the_texts(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    page.get_by_role("link", name="Live routing").click()
    expect(page.locator("#state")).to_have_text("live, generation 2")
    expect(page.locator("#texts")).to_have_text("0 texts in the last 60 seconds")
    with Client(read_only_url) as client:
        client.infer(TEXTS)
    expect(page.locator("#texts")).to_have_text("4 texts in the last 60 seconds")
    first = page.locator("#traffic tr").first
    expect(first).to_contain_text(re.compile("^range3.*100.0.%.*ms$"))
    full = first.locator(".track").bounding_box()["width"]
    assert first.locator(".bar").bounding_box()["width"] > 0.9 * full > 20
    assert "What is" not in page.content()
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("#state")).to_have_text("ready, generation 2")
    assert all(url.startswith((read_only_url, "data:")) for url in open_page.requested)
    assert open_page.errors == []


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_it_fits_a_phone_and_a_desk(open_page, read_only_url, width) -> None:
    with Client(read_only_url) as client:
        client.infer(TEXTS)
    size = {"width": width, "height": 800}
    page = open_page(f"{read_only_url}/traffic", ready="#traffic tr", viewport=size)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for table in page.locator(".wide").all():  # nothing to scroll sideways either
        assert table.evaluate("e => e.scrollWidth - e.clientWidth") <= 0


def test_what_comes_from_elsewhere_is_text_and_never_markup(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    expert = "<img src=x onerror=alert(1)>"
    row = {"expert": expert, "texts": 1, "share": 1, "weight": 1, "declined": None, "seconds": None}
    found = {"generation": 1, "window": 60, "texts": 1, "experts": [row]}
    events = {
        "content_type": "text/event-stream",
        "body": f"event: traffic\ndata: {json.dumps(found)}\n\n",
    }
    page.route("**/v1/traffic/events", lambda route: route.fulfill(**events))
    page.goto(f"{read_only_url}/traffic")
    expect(page.locator("#traffic th")).to_have_text(expert)
    assert page.locator("img").count() == 0


def test_a_server_that_is_gone_is_reported_and_found_again(open_page, read_only_url) -> None:
    page = open_page(read_only_url)
    page.route("**/v1/traffic/events", lambda route: route.abort())
    page.goto(f"{read_only_url}/traffic")
    expect(page.locator("#state")).to_have_text("Not reachable")
    page.unroute("**/v1/traffic/events")
    expect(page.locator("#state")).to_have_text("live, generation 2", timeout=10_000)
