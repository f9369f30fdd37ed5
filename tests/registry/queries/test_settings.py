from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redhost.registry.errors import MissingError, SettingsError, StoreError, UnknownNameError
from redhost.registry.home.composition import lock_for
from redhost.registry.package.discover import Package, discover
from redhost.registry.package.manifest import BackboneRef, dumps
from redhost.registry.queries.settings import (
    Settings,
    choose_backbone,
    disabled_names,
    load_settings,
    resolve_home,
    set_disabled,
)


def test_home_comes_from_flag_then_environment_then_folder(tmp_path: Path) -> None:
    env = {"REDHOST_HOME": str(tmp_path / "env")}
    assert resolve_home(Path("flag"), env=env, folder=tmp_path) == tmp_path / "flag"
    assert resolve_home(None, env=env, folder=tmp_path) == tmp_path / "env"
    assert resolve_home(None, env={}, folder=tmp_path) == tmp_path / ".redhost"


def test_a_home_of_nobody_is_one_line() -> None:
    with pytest.raises(SettingsError, match="there is no home ~nobody-of-this-name"):
        resolve_home(Path("~nobody-of-this-name/state"))


def test_an_authors_plan_is_no_setting(tmp_path: Path) -> None:
    """Every command can be used in the folder of an expert's project."""
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.redhost]\nseed = 7\n[tool.redhost.expert]\nid = "mine"\n')
    assert load_settings(project=project).seed == 7


def test_precedence(tmp_path: Path, publish: Any) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.redhost]\nrouter = "mlp"\nseed = 7\ntolerance = 3.0\nlevel = "row"\n')
    lock = lock_for(publish("a"))  # router linear, seed 0, tolerance 1
    found = load_settings(flags=Settings(seed=9), lock=lock, project=project)
    assert (found.seed, found.router, found.tolerance, found.level) == (9, "linear", 1.0, "row")
    assert found.backbone == "tiny"
    alone = load_settings(project=tmp_path / "none.toml")
    assert (alone.level, alone.seed, alone.router) == ("full", 0, None)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[tool.redhost]\nruoter = 'x'\n", "Did you mean 'router'"),
        ("[tool.redhost]\nlevel = 'most'\n", "level"),
        ("[tool.redhost]\nseed = -1\n", "seed"),
        ("[tool.redhost]\ndecline = 1.0\n", "decline"),
        ("[tool.redhost]\ndecline = '120%'\n", "5% or 0.05"),
        ("[tool.redhost]\nkeys = 'one.pem'\n", "keys"),
        ("[tool]\nredhost = 3\n", "redhost"),
        ("nonsense", "pyproject.toml"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, text: str, match: str) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(text)
    with pytest.raises(SettingsError, match=match) as caught:
        load_settings(project=project)
    assert caught.value.exit_code == 3


def test_keys_lie_beside_the_project_that_names_them(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.redhost]\nkeys = ["author.pub.pem", "/other.pem"]\n')
    assert load_settings(project=project).keys == (str(tmp_path / "author.pub.pem"), "/other.pem")
    assert load_settings(flags=Settings(keys=("a",)), project=project).keys == ("a",)


def backbones(site: Any, make_backbone: Any, *ids: str) -> list[Package]:
    for name in ids:
        files = {"backbone.json": dumps(make_backbone(id=name))}
        site.install(f"red-backbone-{name}", files, group="redhost.backbones")
    return [p for p in discover("backbone") if p.info and site.folder in p.info.parents]


def test_the_only_backbone_is_chosen(site: Any, make_backbone: Any) -> None:
    (package,) = backbones(site, make_backbone, "tiny")
    assert choose_backbone([package], None) == package
    for name in ("tiny", "red-backbone-tiny", "red_backbone_tiny"):
        assert choose_backbone([package], name) == package


def test_several_backbones_leave_a_choice(site: Any, make_backbone: Any) -> None:
    packages = backbones(site, make_backbone, "one", "two")
    with pytest.raises(SettingsError, match=r"one \(red-backbone-one\), two"):
        choose_backbone(packages, None)
    with pytest.raises(UnknownNameError, match="Did you mean 'two'"):
        choose_backbone(packages, "twoo")
    assert choose_backbone(packages, "two").dist == "red-backbone-two"
    with pytest.raises(MissingError, match="pip install"):
        choose_backbone([], None)


def test_of_several_backbones_the_one_that_an_expert_names_is_chosen(
    site: Any, make_backbone: Any
) -> None:
    first = backbones(site, make_backbone, "one")
    for name, mark in (("two", "2"), ("three", "3")):
        files = {"backbone.json": dumps(make_backbone(id=name, fingerprint=mark * 64))}
        site.install(f"red-backbone-{name}", files, group="redhost.backbones")
    packages = [p for p in discover("backbone") if p.folder and site.folder in p.folder.parents]
    named = BackboneRef(name="what it was called", fingerprint="3" * 64)
    assert choose_backbone(packages, None, named=named).dist == "red-backbone-three"
    assert choose_backbone(packages, "two", named=named).dist == "red-backbone-two"
    assert choose_backbone(first, None, named=named) == first[0]
    files = {"backbone.json": dumps(make_backbone(id="again", fingerprint="3" * 64))}
    site.install("red-backbone-again", files, group="redhost.backbones")
    packages = [p for p in discover("backbone") if p.folder and site.folder in p.folder.parents]
    named = BackboneRef(name="three", fingerprint="3" * 64)  # one encoder under two names
    assert choose_backbone(packages, None, named=named).dist == "red-backbone-three"
    strange = BackboneRef(name="away", fingerprint="4" * 64)
    with pytest.raises(SettingsError, match="expected 'away' "):
        choose_backbone(packages, None, named=strange)


def test_disabling(home: Path) -> None:
    assert disabled_names(home) == frozenset()
    assert set_disabled(home, "a")
    assert not set_disabled(home, "a")
    assert disabled_names(home) == {"a"}
    assert set_disabled(home, "a", to=False)
    assert disabled_names(home) == frozenset()
    (home / "disabled.json").write_bytes(b"{")
    with pytest.raises(StoreError):
        disabled_names(home)
