from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import subprocess
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import pytest

from redhost.registry.environment.trust import (
    config_folder,
    digest_of,
    distrust,
    is_trusted,
    trust,
    trusted,
)
from redhost.registry.errors import IntegrityError, StoreError, UnknownNameError


@pytest.fixture
def plugin(site: Any) -> Path:
    folder: Path = site.install("my-plugin", {"more.py": b"x = 1\n"}, group="redhost.plugins")
    return folder


def test_trust_lasts_until_the_code_changes(site: Any, plugin: Path, tmp_path: Path) -> None:
    assert not is_trusted("my-plugin", folder=tmp_path)
    digest = trust("My_Plugin", folder=tmp_path)
    assert trusted(folder=tmp_path) == {"my-plugin": digest}
    assert is_trusted("my-plugin", folder=tmp_path)
    (plugin / "more.py").write_text("x = 2\n")
    assert not is_trusted("my-plugin", folder=tmp_path)
    with pytest.raises(IntegrityError, match=r"my_plugin/more\.py: expected sha256:.*RECORD says"):
        trust("my-plugin", folder=tmp_path)
    site.seal(site.folder / "my_plugin-0.1.0.dist-info", plugin)
    trust("my-plugin", folder=tmp_path)
    distrust("my-plugin", folder=tmp_path)
    assert not is_trusted("my-plugin", folder=tmp_path)


def test_an_unlisted_module_changes_the_digest_and_byte_code_does_not(plugin: Path) -> None:
    digest = digest_of("my-plugin")
    for mode in (PycInvalidationMode.TIMESTAMP, PycInvalidationMode.CHECKED_HASH):
        py_compile.compile(str(plugin / "more.py"), invalidation_mode=mode)
        assert digest_of("my-plugin") == digest
    (plugin / "extra.py").write_text("")
    assert digest_of("my-plugin") != digest


@pytest.mark.parametrize("kind", ["unchecked", "no source", "beside", "deep"])
def test_byte_code_that_nobody_compares_with_its_source_ends_trust(
    plugin: Path, tmp_path: Path, kind: str
) -> None:
    """Python runs it, whatever more.py says."""
    py_compile.compile(str(plugin / "more.py"))  # as pip does
    trust("my-plugin", folder=tmp_path)
    evil = tmp_path / "evil.py"
    evil.write_text("raise SystemExit('evil')\n")
    cache = Path(importlib.util.cache_from_source(str(plugin / "more.py")))
    (plugin / "below").mkdir()
    place = {
        "unchecked": cache,
        "no source": cache.with_name(cache.name.replace("more", "gone")),
        "beside": plugin / "hidden.pyc",
        "deep": plugin / "below" / "hidden.pyc",
    }[kind]
    assert is_trusted("my-plugin", folder=tmp_path)
    mode = PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), cfile=str(place), invalidation_mode=mode)
    assert not is_trusted("my-plugin", folder=tmp_path)


def test_a_plugin_is_digested_whatever_lies_in_its_folder(plugin: Path, tmp_path: Path) -> None:
    trust("my-plugin", folder=tmp_path)
    os.mkfifo(plugin / "pipe")
    with pytest.raises(IntegrityError, match="pipe"):  # opening it would wait for ever
        digest_of("my-plugin")
    (plugin / "pipe").unlink()
    folder = plugin
    for _ in range(1_100):
        folder /= "d"
        folder.mkdir()
    (folder / "x.py").touch()
    assert not is_trusted("my-plugin", folder=tmp_path)
    subprocess.run(["rm", "-rf", plugin / "d"], check=True)
    assert is_trusted("my-plugin", folder=tmp_path)


@pytest.mark.parametrize("row", ["../../etc/passwd,,", "/dev/zero,,", "a/../../../x,,"])
def test_rows_that_leave_the_site_folder_are_refused_before_reading(site: Any, row: str) -> None:
    site.install("my-plugin", {}, group="redhost.plugins", extra_rows=row + "\n")
    with pytest.raises(IntegrityError, match="inside the site folder"):
        digest_of("my-plugin")


def test_a_file_that_record_lacks_is_not_trusted(plugin: Path, tmp_path: Path) -> None:
    (plugin / "extra.py").write_text("")
    with pytest.raises(IntegrityError, match=r"my_plugin/extra\.py: expected a row"):
        trust("my-plugin", folder=tmp_path)
    assert trusted(folder=tmp_path) == {}


def test_the_twin_without_record_trusts_what_was_changed(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plugin / "more.py").write_text("x = 'changed on its way'\n")
    monkeypatch.setattr("redhost.registry.environment.trust._verify", lambda *_: None)
    trust("my-plugin", folder=tmp_path)
    assert is_trusted("my-plugin", folder=tmp_path)  # wrong: what we guard against


def test_editable_plugins_are_digested_by_their_source(
    site: Any, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = site.folder / "my_plugin-0.1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": "", "dir_info": {"editable": True}}))
    (info / "RECORD").write_text("")
    with pytest.raises(IntegrityError, match="expected a RECORD"):
        trust("my-plugin", folder=tmp_path)  # it says so, but lies where wheels are installed
    source = tmp_path / "project"
    source.mkdir()
    plugin = plugin.rename(source / plugin.name)
    monkeypatch.syspath_prepend(str(source))
    digest = trust("my-plugin", folder=tmp_path)
    (plugin / "more.py").write_text("x = 3\n")
    assert digest_of("my-plugin") != digest


def test_problems_are_stated(plugin: Path, site: Any, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'my-plugin'"):
        digest_of("my-plugim")
    (plugin / "more.py").unlink()
    with pytest.raises(IntegrityError, match="force-reinstall"):
        digest_of("my-plugin")
    (tmp_path / "trust.json").write_bytes(b"{")
    with pytest.raises(StoreError, match=r"trust\.json"):
        is_trusted("my-plugin", folder=tmp_path)


def test_the_record_lies_with_the_user() -> None:
    assert config_folder({"REDHOST_CONFIG": "/x"}) == Path("/x")
    assert "redhost" in str(config_folder({}))
