"""The command that installs another part of this project works where this redhost came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redhost.registry.environment import extras
from redhost.registry.environment.extras import how_to_install
from redhost.registry.environment.trust import project_of

ROOT = Path(__file__).parents[3]


def recorded(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    """Let redhost be a wheel that pip recorded with this address."""

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if url is None else json.dumps({"url": url, "archive_info": {}})

    monkeypatch.setattr(extras, "project_of", lambda dist: None)
    monkeypatch.setattr(extras.metadata, "distribution", lambda name: Installed())


def test_in_a_clone_it_is_the_plugin_s_folder() -> None:
    for plugin in (ROOT / "plugins").glob("redhost-*"):
        extra = plugin.name.removeprefix("redhost-")
        assert how_to_install(extra) == f"Run: pip install -e {plugin}"


def test_a_clone_without_its_folder_takes_it_from_an_index(tmp_path, monkeypatch) -> None:
    recorded(monkeypatch, None)
    monkeypatch.setattr(extras, "project_of", project_of)
    monkeypatch.setattr("redhost.registry.environment.trust.source_tree", lambda: tmp_path)
    assert how_to_install("peft") == "Run: pip install 'redhost[peft]'"


def test_of_a_wheel_s_folder_pip_takes_the_others_from_there(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "a dist"
    folder.mkdir()
    recorded(monkeypatch, f"{folder.as_uri()}/redhost-0.1.0-py3-none-any.whl")
    assert how_to_install("peft") == f"Run: pip install --find-links '{folder}' 'redhost[peft]'"
    # What `make index` writes, by which no index is asked for packages of this project.
    pins = folder / "constraints.txt"
    pins.write_text("")
    assert how_to_install("peft") == f"Run: pip install -c '{pins}' 'redhost[peft]'"


@pytest.mark.parametrize(
    "url", [None, "https://example.org/redhost-0.1.0-py3-none-any.whl", "file:///gone/redhost.whl"]
)
def test_of_an_index_it_is_the_extra(monkeypatch, url) -> None:
    recorded(monkeypatch, url)
    assert how_to_install("peft") == "Run: pip install 'redhost[peft]'"
