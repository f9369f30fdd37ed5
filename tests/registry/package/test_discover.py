from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.errors import UsageError
from redhost.registry.package.discover import discover, from_folder, headers, plugin_entry_points
from redhost.registry.wheel import policy
from redhost.registry.wheel.policy import NameOwners


def test_finds_packages_without_importing_them(site: Any) -> None:
    site.expert("b")
    folder = site.expert("a")
    found = site.experts()
    assert [p.module for p in found] == ["red_expert_a", "red_expert_b"]
    assert found[0].folder == folder
    assert (found[0].dist, found[0].version, found[0].editable) == ("red-expert-a", "0.1.0", False)
    assert "red_expert_a" not in sys.modules


@pytest.mark.parametrize("value", ["red_expert_a.sub", "red_expert_a:thing", "..", "a b"])
def test_follows_plain_top_level_names_only(site: Any, make_expert: Any, value: str) -> None:
    site.install("red-expert-a", make_expert("a"), value=value)
    (found,) = [p for p in discover("expert") if p.dist == "red-expert-a"]
    assert found.folder is None


def test_finds_an_editable_package_by_spec(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.expert("a")
    project = tmp_path / "project"
    project.mkdir()
    folder.rename(project / folder.name)
    info = site.folder / "red_expert_a-0.1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": "", "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(str(project))
    (found,) = [p for p in discover("expert") if p.dist == "red-expert-a"]
    assert found.editable
    assert found.folder == project / "red_expert_a"
    assert "red_expert_a" not in sys.modules


def test_one_malformed_entry_points_file_stops_nobody(site: Any, make_expert: Any) -> None:
    site.expert("a")
    site.install("broken", {})
    (site.folder / "broken-0.1.0.dist-info" / "entry_points.txt").write_bytes(
        b"[redhost.experts\xff"
    )
    site.install("odd", {})
    (site.folder / "odd-0.1.0.dist-info" / "entry_points.txt").write_text(
        "nonsense\n[redhost.experts]\nno value\n"
    )
    assert [p.dist for p in site.experts()] == ["red-expert-a"]


def test_reads_plugins_without_importing_them(site: Any) -> None:
    site.install("my-plugin", {}, group="redhost.plugins")
    (found,) = [e for e in plugin_entry_points("redhost.plugins") if e.dist == "my-plugin"]
    assert (found.value, found.version, found.summary) == ("my_plugin", "0.1.0", "Made up.")


def plugins_of(dist: str) -> list[tuple[str, tuple[Path, ...]]]:
    return [(e.version, e.rivals) for e in plugin_entry_points("redhost.plugins") if e.dist == dist]


def test_of_two_folders_on_the_path_the_first_has_the_plugin(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment lies on top of another, or a build left an egg-info beside the source."""
    site.install("my-plugin", {}, group="redhost.plugins", version="2")
    below = tmp_path / "below"
    shutil.copytree(site.folder / "my_plugin-2.dist-info", below / "my_plugin-1.dist-info")
    shutil.copytree(site.folder / "my_plugin-2.dist-info", below / "my_plugin.egg-info")
    monkeypatch.setattr(sys, "path", [*sys.path, str(below)])
    assert plugins_of("my-plugin") == [("2", ())]
    shutil.copytree(site.folder / "my_plugin-2.dist-info", site.folder / "my_plugin-1.dist-info")
    assert [len(rivals) for _, rivals in plugins_of("my-plugin")] == [1, 1]


def test_the_egg_info_of_a_build_comes_after_what_is_installed(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("my-plugin", {}, group="redhost.plugins")
    info = site.folder / "my_plugin-0.1.0.dist-info"
    shutil.copytree(info, tmp_path / "src" / "my_plugin.egg-info")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    [point] = (e for e in plugin_entry_points("redhost.plugins") if e.dist == "my-plugin")
    assert (point.info, point.rivals) == (info, ())


def test_what_pip_moved_away_and_did_not_remove_is_no_package(site: Any) -> None:
    site.install("my-plugin", {}, group="redhost.plugins")
    site.expert("a")
    for name in ("my_plugin", "red_expert_a"):
        info = site.folder / f"{name}-0.1.0.dist-info"
        shutil.copytree(info, info.with_name(f"~{info.name[1:]}"))
    assert plugins_of("my-plugin") == [("0.1.0", ())]
    assert "~y-plugin" not in {e.dist for e in plugin_entry_points("redhost.plugins")}
    assert [p.dist for p in site.experts()] == ["red-expert-a"]
    assert not NameOwners().others(site.folder, "red_expert_a", dist="red-expert-a")


def test_an_egg_info_without_a_version_is_of_its_distribution(site: Any) -> None:
    folder = site.expert("a")
    egg = site.folder / "red_expert_a.egg-info"
    egg.mkdir()
    (egg / "top_level.txt").write_text(f"{folder.name}\n")
    assert not NameOwners().others(site.folder, folder.name, dist="red-expert-a")
    assert NameOwners().others(site.folder, folder.name, dist="other") == {"red-expert-a"}


@pytest.mark.parametrize("value", ["my_plugin [fast]", "my_plugin[fast,more]", "my_plugin"])
def test_extras_of_an_entry_point_are_no_part_of_its_value(site: Any, value: str) -> None:
    site.install("my-plugin", {}, group="redhost.plugins", value=f"{value}\nmy-plugin = my_plugin")
    points = [e for e in plugin_entry_points("redhost.plugins") if e.dist == "my-plugin"]
    assert [(e.name, e.value) for e in points] == [("my-plugin", "my_plugin")]


def test_terminal_codes_of_metadata_are_spelt_out() -> None:
    fields = headers("Name: red-expert-x\nVersion: 1\nSummary: nice\x1b[2J\x07 one\n\nbody")
    assert fields["summary"] == r"nice\x1b[2J\x07 one"


def test_describes_a_folder_that_is_not_installed(tmp_path: Path, make_expert: Any) -> None:
    folder = tmp_path / "project" / "src" / "mine"
    folder.mkdir(parents=True)
    for name, data in make_expert("mine").items():
        (folder / name).write_bytes(data)
    project = tmp_path / "project"
    (project / "pyproject.toml").write_text('[project]\nname = "red-expert-mine"\nversion = "2"\n')
    package = from_folder(project)
    assert (str(package), package.folder) == ("red-expert-mine 2", folder)
    assert from_folder(folder).folder == folder
    with pytest.raises(UsageError):
        from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "fill", ["\n" * 262_000, "a\n" * 131_000, "A: b\n" * 52_000, "[redhost.experts]\n" * 14_000]
)
def test_many_metadata_folders_of_one_wheel_take_no_time(site: Any, fill: str) -> None:
    """Limits of a file are no limit where one wheel brings as many of them as it likes."""
    site.expert("a")
    for n in range(60):
        info = site.folder / f"z{n}.egg-info"
        info.mkdir()
        (info / "PKG-INFO").write_text(f"Name: z{n}\n{fill}")
        (info / "entry_points.txt").write_text(f"[redhost.plugins]\n{fill}x = y")
    begun = time.process_time()
    assert [p.dist for p in discover("expert") if p.module == "red_expert_a"] == ["red-expert-a"]
    plugin_entry_points("redhost.plugins")
    assert time.process_time() - begun < 5


def test_many_records_of_one_wheel_are_at_nobody_elses_expense(site: Any, monkeypatch) -> None:
    monkeypatch.setattr(policy, "MAX_OWNERS", 100_000)
    site.expert("a")
    for n in range(30):
        info = site.folder / f"z{n}.egg-info"
        info.mkdir()
        (info / "RECORD").write_text("a/\n" * 10_000)
    owners = NameOwners()
    assert owners.others(site.folder, "red_expert_a", dist="other") == {"red-expert-a"}
    assert len(owners.others(site.folder, "a", dist="other")) in {2, 3}
