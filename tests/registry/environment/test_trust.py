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
    agreed,
    config_folder,
    digest_of,
    distrust,
    find,
    is_trusted,
    source_tree,
    trust,
    trusted,
    wheel_digest,
)
from redhost.registry.errors import (
    IntegrityError,
    SettingsError,
    StoreError,
    UnknownNameError,
)


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


def test_control_without_record_trusts_what_was_changed(
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
    with pytest.raises(IntegrityError, match=r"found none\. Install it with pip"):
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


def test_a_user_without_a_home_has_to_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(name: str) -> str:
        raise RuntimeError("could not determine the home directory")  # as platformdirs does

    monkeypatch.setattr("platformdirs.user_config_dir", homeless)
    with pytest.raises(SettingsError, match=r"home directory\. Set REDHOST_CONFIG"):
        config_folder({})


def test_the_record_lies_with_the_user() -> None:
    assert config_folder({"REDHOST_CONFIG": "/x"}) == Path("/x")
    assert "redhost" in str(config_folder({}))


@pytest.fixture
def released(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed plugin that this redhost was released with."""
    folder: Path = site.install("redhost-mine", {"more.py": b"x = 1\n"}, group="redhost.plugins")
    file = tmp_path / "released.json"
    file.write_text(json.dumps({"redhost-mine": digest_of("redhost-mine")}))
    monkeypatch.setattr("redhost.registry.environment.trust.RELEASED", file)
    return folder


def test_what_redhost_was_released_with_needs_no_record(
    site: Any, released: Path, tmp_path: Path
) -> None:
    agreement = agreed(find("redhost-mine"), folder=tmp_path)
    assert agreement is not None
    assert agreement.reason == "this redhost was released with it"
    (released / "more.py").write_text("x = 2\n")
    site.seal(site.folder / "redhost_mine-0.1.0.dist-info", released)  # as another author's wheel
    assert not is_trusted("redhost-mine", folder=tmp_path)
    trust("redhost-mine", folder=tmp_path)
    agreement = agreed(find("redhost-mine"), folder=tmp_path)
    assert agreement is not None and agreement.reason is None


def test_an_installed_plugin_has_the_digest_of_its_wheel(site: Any, released: Path) -> None:
    files = (path for path in site.folder.rglob("*") if path.is_file())
    members = {path.relative_to(site.folder).as_posix(): path.read_bytes() for path in files}
    assert wheel_digest(members) == digest_of("redhost-mine")


def install_editable(site: Any, dist: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a plugin whose code lies in a project folder; return the code's folder."""
    folder: Path = site.install(dist, {"more.py": b"x = 1\n"}, group="redhost.plugins")
    info = site.folder / f"{dist.replace('-', '_')}-0.1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}}))
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").write_text("")
    monkeypatch.syspath_prepend(str(project / "src"))
    return folder.rename(project / "src" / folder.name)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source tree that redhost seems to run from."""
    folder = tmp_path / "tree"
    monkeypatch.setattr("redhost.registry.environment.trust.source_tree", lambda: folder)
    return folder


def test_a_plugin_of_the_source_tree_needs_no_record_however_it_is_edited(
    site: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = install_editable(site, "redhost-mine", tree / "plugins/redhost-mine", monkeypatch)
    agreement = agreed(find("redhost-mine"), folder=tmp_path)
    assert agreement is not None
    assert agreement.reason == "it lies in the source tree of this redhost"
    (code / "more.py").write_text("x = 2\n")
    assert is_trusted("redhost-mine", folder=tmp_path)
    (code / "linked.py").symlink_to(tmp_path / "elsewhere.py")
    (tmp_path / "elsewhere.py").write_text("x = 3\n")
    assert not is_trusted("redhost-mine", folder=tmp_path)


@pytest.mark.parametrize(
    ("dist", "place"),
    [
        ("redhost-mine", "copy/plugins/redhost-mine"),
        ("redhost-mine", "tree/plugins/redhost-other"),
        ("redhost-mine", "tree/elsewhere"),
        ("another-mine", "tree/plugins/another-mine"),
    ],
)
def test_a_plugin_that_is_not_of_the_source_tree_is_a_strangers(
    site: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dist: str, place: str
) -> None:
    """Also where the tree has a plugin of that name, and its code differs in one byte."""
    (tree / "plugins/redhost-mine").mkdir(parents=True)
    (tree / "plugins/redhost-mine/pyproject.toml").write_text("")
    install_editable(site, dist, tmp_path / place, monkeypatch)
    assert not is_trusted(dist, folder=tmp_path)


def test_a_plugin_of_the_tree_that_is_installed_as_a_wheel_is_a_strangers(
    site: Any, tree: Path, tmp_path: Path
) -> None:
    (tree / "plugins/redhost-mine").mkdir(parents=True)
    (tree / "plugins/redhost-mine/pyproject.toml").write_text("")
    site.install("redhost-mine", {}, group="redhost.plugins")
    assert not is_trusted("redhost-mine", folder=tmp_path)


def test_these_tests_run_from_a_source_tree_and_its_plugins_are_trusted(tmp_path: Path) -> None:
    assert source_tree() == Path(__file__).parents[3]
    assert is_trusted("redhost-onnx", folder=tmp_path)
