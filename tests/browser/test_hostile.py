"""Texts of a hostile package in a real Chromium: shown as they are, and nothing of them runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from redhost_serve.client import Client
from redhost_serve.server import running

import redhost

SITE = Path(__file__).parents[2] / "build/site"
RUN = "window.fired=1"
IMAGE = f"<img src=x onerror={RUN}>"
SCRIPT = f"</script><script>{RUN}</script>"
LINK = f"javascript:{RUN}"
ATTRIBUTE = f'"onmouseover="{RUN}" style="position:fixed;inset:0'
BRACES = "{{constructor.constructor('" + RUN + "')()}}${" + RUN + "}"
BIDI = "\u202egnp\u2066.ex\u200be\ufeff"  # right to left, an isolate that is never closed, no width
LABELS = {"evil": (IMAGE, SCRIPT), "links": (LINK, ATTRIBUTE), "braces": (BRACES, BIDI)}
TEXTS = [IMAGE, SCRIPT, LINK, ATTRIBUTE, BRACES, BIDI]

WATCH = """
window.fired = 0;
window.violations = [];
document.addEventListener("securitypolicyviolation",
  (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
"""
MARKUP = "document.querySelectorAll('img, svg, iframe, object, embed, base, [style*=inset]').length"


class Watched:
    """A page that remembers what ran, what was refused, and what was fetched."""

    def __init__(self, browser: Browser) -> None:
        self.context = browser.new_context()
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("dialog", lambda d: (self.dialogs.append(d.message), d.dismiss()))
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        self.page.on("request", lambda r: self.requests.append(r.url))

    def assert_nothing_ran(self) -> None:
        """Assert that nothing ran, became markup, or was kept from running by the policy alone."""
        found = self.page.evaluate(f"[window.fired, window.violations, {MARKUP}]")
        assert [*found, self.dialogs, self.errors] == [0, [], 0, [], []]
        assert not any("/x" in url for url in self.requests)


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    page = Watched(browser)
    yield page
    page.context.close()


@pytest.fixture
def hostile_host(redhost_environment, redhost_fake_expert, tmp_path: Path) -> redhost.Host:
    """Experts with hostile labels and sentences, composed; and three that cannot be attached."""
    torch.set_num_threads(1)
    for name, labels in LABELS.items():
        edit = redhost_fake_expert(name, labels=labels)
        rewrite(redhost_environment, edit, domain=f"{IMAGE} {SCRIPT}", license=IMAGE)
    for name, change in (
        ("field", {IMAGE: SCRIPT}),
        ("space", {"schema": IMAGE}),
        ("range", {"bus_api": IMAGE}),
    ):
        rewrite(redhost_environment, redhost_fake_expert(name), **change)
    host = redhost.Host.open(
        tmp_path / "home", backbone="tiny-random", plugins=redhost.plugins.Plugins(())
    )
    host.recompose(accept=True)
    return host


def rewrite(environment, dist: str, **changes: str) -> None:
    """Change keys of an installed expert's manifest, as if its author had written them."""
    path = environment.package(dist) / "expert.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
    environment.seal(dist)


@pytest.fixture
def hostile_url(hostile_host: redhost.Host) -> Iterator[str]:
    with running(redhost.Live(hostile_host.session), token="a token") as (url, _):
        yield url


def ask(page: Page, text: str) -> None:
    page.get_by_label("A text to answer").fill(text)
    page.get_by_role("button", name="Ask").click()


def examples(host: redhost.Host) -> dict[str, str]:
    """Return a text that each label is the answer to."""
    texts = [f"{name} {n}" for name in LABELS for n in range(999)]
    return {a.label: text for a, text in zip(host.predict(texts), texts, strict=True)}


def test_labels_and_sentences_of_a_package_are_shown_and_never_run(
    hostile_host, hostile_url, watched
) -> None:
    page = watched.page
    page.goto(hostile_url)
    expect(page.locator("#experts tr")).to_have_count(6)
    expect(page.locator("#experts")).to_contain_text(IMAGE)  # in the reasons
    text_of = examples(hostile_host)
    assert set(text_of) == {label for labels in LABELS.values() for label in labels}
    for label, text in text_of.items():
        ask(page, text)
        expect(page.locator("#label")).to_have_text(label, use_inner_text=False)
        assert page.locator("#label").evaluate("e => e.textContent") == label
        page.locator("#label").hover()
        watched.assert_nothing_ran()


def test_what_is_typed_and_looked_up_is_never_run(hostile_url, watched) -> None:
    page = watched.page
    page.goto(hostile_url)
    expect(page.locator("#experts tr")).to_have_count(6)
    for text in TEXTS:
        ask(page, text)
        expect(page.locator("#label")).not_to_be_empty()
        page.get_by_label("Token, for changes").fill(text)
        watched.assert_nothing_ran()
    page.goto(f"{hostile_url}/?q={quote(IMAGE)}#{IMAGE}")
    expect(page.locator("#experts tr")).to_have_count(6)
    watched.assert_nothing_ran()


def test_a_label_cannot_turn_the_words_beside_it_around(hostile_host, hostile_url, watched) -> None:
    page = watched.page
    page.goto(hostile_url)
    expect(page.locator("#experts tr")).to_have_count(6)
    ask(page, examples(hostile_host)[BIDI])
    expect(page.locator("#sure")).to_contain_text("by generation")
    label, sure = (page.locator(i).bounding_box() for i in ("#label", "#sure"))
    assert label is not None and sure is not None
    assert sure["x"] >= label["x"] + label["width"]
    order = """e => [0, 3].map((n) => {
      const range = document.createRange();
      range.setStart(e.firstChild, n); range.setEnd(e.firstChild, n + 1);
      return range.getBoundingClientRect().left;
    })"""
    first, fourth = page.locator("#sure").evaluate(order)
    assert first < fourth


def test_live_routing_shows_hostile_traffic_and_runs_none(
    hostile_host, hostile_url, watched
) -> None:
    page = watched.page
    page.goto(f"{hostile_url}/traffic")
    expect(page.locator("#state")).to_have_text("live, generation 1")
    with Client(hostile_url) as client:
        client.infer([*TEXTS, *examples(hostile_host).values()])
    expect(page.locator("#texts")).to_contain_text("12 texts")
    watched.assert_nothing_ran()
    page.goto(f"{hostile_url}/traffic?question={quote(IMAGE)}#{IMAGE}")
    expect(page.locator("#state")).to_have_text("Not reachable")
    assert page.evaluate(f"[window.fired, {MARKUP}]") == [0, 0]


def test_no_other_route_is_a_document_that_runs(hostile_url, watched) -> None:
    page = watched.page
    paths = json.loads(page.request.get(f"{hostile_url}/openapi.json").text())["paths"]
    named = [p.replace("{name}", quote(IMAGE)) for p, of in paths.items() if "get" in of]
    elsewhere = [f"/{quote(IMAGE)}", f"/static/{quote(SCRIPT)}", f"/v1/generations?model={IMAGE}"]
    for path in (*named, *elsewhere):
        if path.endswith("events"):  # a stream without an end
            continue
        answer = page.goto(f"{hostile_url}{path}")
        assert answer is not None
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not answer.headers["content-type"].startswith("text/html")
        assert page.evaluate(f"[window.fired, {MARKUP}]") == [0, 0]
    assert not watched.dialogs and len(named) > 8


@pytest.mark.parametrize(
    ("write", "touch"),
    [
        (f"<p>{IMAGE}</p>", None),
        (f"<script>var label = '{SCRIPT}'</script>", None),
        (f'<a href="{LINK}">x</a>', "click"),
        (f'<p title="{ATTRIBUTE}">x</p>', "hover"),
    ],
)
def test_a_page_that_writes_them_as_markup_is_noticed(watched, write, touch) -> None:
    """Control."""
    watched.page.set_content(write)
    if touch:
        getattr(watched.page.locator("a, p").first, touch)()
    watched.page.wait_for_function("window.fired === 1")


@pytest.mark.parametrize("sink", ["innerHTML", "style", "script", "link"])
def test_what_the_pages_code_may_not_do_is_refused_by_the_policy(
    hostile_url, watched, sink
) -> None:
    page, refused = (
        watched.page,
        {
            "innerHTML": f"document.body.innerHTML = {json.dumps(IMAGE)}",
            "style": "document.body.setAttribute('style', 'color: red')",
            "script": f"document.body.append(Object.assign(document.createElement('script'), "
            f"{{text: {json.dumps(RUN)}}}))",
            "link": f"location.assign({json.dumps(LINK)})",
        }[sink],
    )
    page.goto(hostile_url)
    expect(page.locator("#experts tr")).to_have_count(6)
    page.evaluate(f"() => {{ try {{ {refused} }} catch (e) {{}} }}")
    page.wait_for_function("window.violations.length > 0")
    assert page.evaluate("window.fired") == 0


@pytest.mark.parametrize("prefixed_url", ["/models", "/a/b"], indirect=True)
def test_the_pages_work_under_a_prefix(prefixed_url, watched) -> None:
    page = watched.page
    page.goto(f"{prefixed_url}/")
    expect(page.locator("#state")).to_contain_text("ready")
    ask(page, "What is 37 plus 12?")
    expect(page.locator("#label")).to_have_text("49")
    page.get_by_role("link", name="Live routing").click()
    expect(page.locator("#state")).to_contain_text("live")
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("#state")).to_contain_text("ready")
    watched.assert_nothing_ran()
    paths = [r for r in watched.requests if not r.startswith("data:")]
    assert len(paths) > 8 and all(p.startswith(f"{prefixed_url}/") for p in paths)


@pytest.fixture
def docs_url() -> Iterator[str]:
    """The documentation on a web server, as its search needs one."""
    assert (SITE / "index.html").is_file(), "run `make docs`"
    handler = partial(Undisturbed, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Undisturbed(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("text", [IMAGE, SCRIPT, ATTRIBUTE, BRACES])
def test_the_documentation_runs_nothing_of_what_is_searched_or_linked_to(
    docs_url, watched, text
) -> None:
    page = watched.page
    page.goto(f"{docs_url}/index.html?q={quote(text)}&h={quote(text)}#{text}")
    search = page.locator(".md-search__input")
    expect(search).to_have_value(text)
    for words in (text, "labels"):
        search.fill(words)
        search.press("End")  # it looks for what was typed when a key is let go
    expect(page.locator(".md-search-result__link").first).to_be_visible()
    page.locator(".md-search-result__link").first.click()
    page.wait_for_load_state()
    assert page.evaluate("[window.fired, window.violations]") == [0, []]
    assert not watched.dialogs and not watched.errors
    assert all(url.startswith((docs_url, "data:")) for url in watched.requests)
