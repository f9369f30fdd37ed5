from __future__ import annotations

import json
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
