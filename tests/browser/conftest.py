"""A page in a real browser; what it logs as an error fails the test."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

spec = importlib.util.spec_from_file_location("stage", Path(__file__).with_name("stage.py"))
assert spec is not None and spec.loader is not None
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = tools.chromium(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser") / "home"


@pytest.fixture
def url(home: Path) -> Iterator[str]:
    """A server that may be changed; generation 2 is served."""
    with tools.site(home) as url:
        yield url
    tools.redhost.Host.open(home).rollback(2)


@pytest.fixture
def read_only_url(home: Path) -> Iterator[str]:
    """A server that may not be changed."""
    with tools.site(home, token=None) as url:
        yield url


@pytest.fixture
def prefixed_url(home: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that may not be changed, whose paths have the prefix of the fixture's parameter."""
    with tools.site(home, token=None, prefix=request.param) as url:
        yield url


@pytest.fixture
def token() -> str:
    return str(tools.TOKEN)


class Opener:
    """Opens the page and remembers every request and error.

    Args:
        browser: The browser.
    """

    def __init__(self, browser: Browser) -> None:
        self.browser, self.contexts = browser, list[Any]()
        self.requested: list[str] = []
        self.errors: list[str] = []

    def __call__(self, url: str, *, ready: str = "#experts tr", **options: Any) -> Page:
        context = self.browser.new_context(**options)
        self.contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        page.goto(url)
        page.wait_for_selector(ready)
        return page


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opener]:
    opener = Opener(browser)
    yield opener
    for context in opener.contexts:
        context.close()
