"""The plugins that pages show, installed and trusted as a reader would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redhost_ray.jobs
from pages.page import Block, all_pages
from pages.python import unbound

import redhost
from redhost.registry.environment import trust
from redhost.testing import Environment

SHOWN = [
    block
    for page in all_pages()
    for block in page.blocks("python")
    if "hookimpl" in block.text and not unbound(block.text)
]


@pytest.fixture
def install(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Block], redhost.plugins.PluginState]:
    """Return the function that makes a package of a block, and trusts it."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))

    def put(block: Block) -> redhost.plugins.PluginState:
        environment.install_code(
            "shown", {"__init__.py": block.text}, {"redhost.plugins": "s = shown"}
        )
        trust.trust("shown")
        return next(s for s in redhost.plugins.Plugins().states if s.dist == "shown")

    return put


def of_page(name: str) -> Block:
    [block] = [b for b in SHOWN if b.page == name]
    return block


@pytest.mark.parametrize("block", SHOWN, ids=lambda b: f"{b.page}:{b.line}")
def test_a_plugin_that_a_page_shows_is_loaded(
    block: Block, install: Callable[[Block], redhost.plugins.PluginState]
) -> None:
    state = install(block)
    assert state.state == "loaded", state


def test_the_router_of_the_guide_routes(
    install: Callable[[Block], redhost.plugins.PluginState],
    redhost_fake_expert: Callable[[str], str],
    tmp_path: Path,
) -> None:
    install(next(b for b in SHOWN if b.page == "docs/plugins.md" and "class Uniform" in b.text))
    for name in ("apples", "pears"):
        redhost_fake_expert(name)
    host = redhost.Host.open(tmp_path / "home", backbone="tiny-random")
    host.recompose(router="uniform")
    weights = host.predict(["how many apples?"])[0].weights
    assert set(weights) >= {"apples", "pears"} and len(set(weights.values())) == 1


def test_the_engine_of_its_page_is_found(
    install: Callable[[Block], redhost.plugins.PluginState],
) -> None:
    install(of_page("docs/engines.md"))
    assert (
        redhost_ray.jobs.choose_pool(redhost.plugins.Plugins(), engine="here", workers=1).name
        == "here"
    )
