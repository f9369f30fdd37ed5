"""The page that shows routing as it happens."""

from __future__ import annotations

import pytest
from redhost_serve.client import Client


def test_it_shows_the_last_minute_as_it_goes_on(open_page, read_only_url) -> None:
    page = open_page(f"{read_only_url}/traffic", ready="#state.good")
    with Client(read_only_url) as client:
        client.infer(["What is 37 plus 12?"] * 4)
    row = page.locator("#traffic tr", has_text="range3")
    row.wait_for()
    assert "live" in page.inner_text("#state")
    assert "What is" not in page.inner_text("main")


@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_a_phone_and_a_desk(open_page, read_only_url, width) -> None:
    page = open_page(f"{read_only_url}/traffic", ready="#state.good")
    page.set_viewport_size({"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
