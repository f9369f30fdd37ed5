"""The targets of `redhost check`: ids, distributions, folders and wheels."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import Site
from redhost_author.targets import resolve_targets, static_check

from redhost.registry.errors import UnknownNameError
from redhost.registry.queries.settings import set_disabled


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return Site(folder)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_targets_are_ids_distributions_folders_and_wheels(site, home, tmp_path) -> None:
    folder = site.expert("red")
    for name in ("red", "red-expert-red", str(folder)):
        [target] = resolve_targets([name], home=home, backbone=None)
        assert target.name == name and target.violations == ()
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"no archive")
    [target] = resolve_targets([str(wheel)], home=home, backbone=None)
    assert [v.code for v in static_check(target)] == ["archive_broken"]


def test_no_targets_mean_everything_installed(site, home) -> None:
    site.expert("red")
    site.expert("green")
    names = {t.name for t in resolve_targets([], home=home, backbone=None)}
    assert {"red", "green"} <= names


def test_a_folder_named_like_an_expert_is_checked_only_where_it_is_named(
    site, home, tmp_path, monkeypatch
) -> None:
    site.expert("red")
    (tmp_path / "red").mkdir()
    monkeypatch.chdir(tmp_path)
    every = resolve_targets([], home=home, backbone=None)
    [installed] = [t for t in every if t.name == "red"]
    assert installed.violations == () and installed.files is not None
    [named] = resolve_targets(["red"], home=home, backbone=None)
    assert [v.code for v in static_check(named)] == ["package_files"]


def test_an_unknown_target_is_suggested(site, home) -> None:
    site.expert("red")
    with pytest.raises(UnknownNameError, match="Did you mean 'red'"):
        resolve_targets(["rde"], home=home, backbone=None)
    with pytest.raises(UnknownNameError):
        resolve_targets(["r" * 5000], home=home, backbone=None)  # too long to be a file's name
    with pytest.raises(UnknownNameError, match="unknown backbone 'none-such'"):
        resolve_targets(["red"], home=home, backbone="none-such")


def test_both_of_two_packages_with_one_id_are_reported(site, home) -> None:
    site.expert("red")
    site.expert("red", dist="also-red")
    targets = resolve_targets(["red"], home=home, backbone=None)
    assert [t.violations[0].code for t in targets] == ["duplicate_id", "duplicate_id"]


def test_a_claim_to_an_id_counts_while_it_is_valid_and_enabled(site, home) -> None:
    site.expert("red")
    site.expert("red", dist="broken-red", change={"weights.sha256": "0" * 64})
    targets = resolve_targets(["red"], home=home, backbone=None)
    assert [[v.code for v in t.violations] for t in targets] == [["weights_digest"], []]
    site.expert("red", dist="also-red")
    [named] = resolve_targets(["red-expert-red"], home=home, backbone=None)
    assert [v.code for v in named.violations] == ["duplicate_id"]
    set_disabled(home, "also-red")
    [named] = resolve_targets(["red-expert-red"], home=home, backbone=None)
    assert named.violations == ()


def test_only_what_is_named_is_read(site, home, expert_reads) -> None:
    folders = [site.expert(name) for name in ("red", "green", "blue", "pink", "grey")]
    for name in ("red", "red-expert-red", str(folders[0])):
        with expert_reads() as reads:
            resolve_targets([name], home=home, backbone=None)
        assert reads == ["read_expert"]
    with expert_reads() as reads:
        resolve_targets(["red", "blue"], home=home, backbone=None)
    assert len(reads) == 2


def test_a_disabled_package_is_checked_like_any_other(site, home) -> None:
    site.expert("red")
    set_disabled(home, "red")
    [target] = resolve_targets(["red"], home=home, backbone=None)
    assert target.violations == ()
