"""Inventory, status, audit and scaffold: what is installed, judged and reported."""

from __future__ import annotations

import pytest
from redhost_author.project import write_project

from redhost.registry.package.discover import discover, from_folder
from redhost.registry.queries.inventory import take_inventory, take_status


def test_inventory_lists_a_package_and_remembers_its_result(site, home) -> None:
    site.expert("red")
    [found] = [x for x in take_inventory(home).statuses if x.id == "red"]
    again = [x for x in take_inventory(home).statuses if x.id == "red"]
    assert found.digest == again[0].digest


def test_inventory_without_remembering_touches_no_home(site, home) -> None:
    site.expert("red")
    take_inventory(home, remember=False)
    assert not home.exists()


def test_inventory_says_why_there_is_no_backbone(site, home) -> None:
    site.expert("red")
    inventory = take_inventory(home, backbone="none-such")
    assert inventory.backbone is None
    assert "unknown backbone 'none-such'" in str(inventory.problem)
    assert {x.state for x in inventory.statuses if x.id == "red"} == {"valid"}


def test_status_of_an_empty_home_is_empty(home) -> None:
    status = take_status(home)
    assert (status.generation, status.experts, status.drift) == (None, (), ())


def test_status_names_what_drifted(site, home, publish) -> None:
    publish("red")
    drift = {d.id: d.kind for d in take_status(home).drift}
    assert drift["red"] == "missing"


@pytest.mark.parametrize("kind", ["expert", "backbone"])
def test_a_scaffold_is_a_project_that_installs(tmp_path, environment, kind, make_expert) -> None:
    summary = 'knows "things"'
    folder = write_project(tmp_path / "p", kind=kind, package_id="fr-legal", summary=summary)
    assert folder.name == f"red_{kind}_fr_legal"
    (folder / f"{kind}.json").write_bytes(make_expert("fr-legal")["expert.json"])
    assert environment.install(tmp_path / "p") == f"red-{kind}-fr-legal"
    mine = [p for p in discover(kind) if p.module == folder.name]
    assert mine[0].dist == f"red-{kind}-fr-legal"
    assert from_folder(tmp_path / "p").kind == kind
