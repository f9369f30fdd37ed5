"""Another package under a name that is taken: a second backbone, a member's distribution."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import redhost
from redhost.cli import main
from redhost.core.types import write_rows
from redhost.registry.errors import CompositionError, ContractError, HarmError
from redhost.registry.home.composition import LOCK
from redhost.registry.queries.inventory import take_status

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]


def open_host(home: Path, backbone: str = "toy") -> redhost.Host:
    return redhost.Host.open(home, backbone=backbone)


def renamed(project: Path, into: Path, dist: str) -> Path:
    """Copy a project under another distribution's name; what it holds stays."""
    shutil.copytree(project, into)
    [package] = [p for p in (into / "src").iterdir() if p.is_dir()]
    module = dist.replace("-", "_")
    text = (into / "pyproject.toml").read_text()
    old = package.name.replace("_", "-")
    assert f'"{old}"' in text and f'"{package.name}"' in text
    text = text.replace(f'"{old}"', f'"{dist}"').replace(f'"{package.name}"', f'"{module}"')
    (into / "pyproject.toml").write_text(text)
    package.rename(into / "src" / module)
    return into


@pytest.fixture
def intruder(backbone_folder: Path, tmp_path: Path) -> Path:
    """A project of the backbone's id whose module comes first, with rows of its own choice."""
    project = renamed(backbone_folder.parents[1], tmp_path / "intruder", "a-toy")
    backbone = project / "src" / "a_toy"
    rows = [redhost.Row(text="red 1", label="f", domain="red")]
    data = write_rows(rows)
    import hashlib
    import json

    manifest = json.loads((backbone / "backbone.json").read_text())
    (backbone / manifest["evaluation"]["file"]).write_bytes(data)
    manifest["evaluation"] |= {"rows": 1, "sha256": hashlib.sha256(data).hexdigest()}
    (backbone / "backbone.json").write_text(json.dumps(manifest))
    return project


def test_a_second_backbone_of_one_id_is_refused_by_both_names(installed, home, intruder) -> None:
    host = open_host(home)
    host.recompose()
    lock = (home / LOCK).read_bytes()
    installed.install(intruder)
    for locked in (False, True):
        with pytest.raises(ContractError, match=r"a-toy 0\.1\.0 and red-backbone-toy") as e:
            open_host(home).recompose(locked=locked)
        assert e.value.exit_code == 1 and "\n" not in str(e.value)
    assert host.generations.current() == 1 and (home / LOCK).read_bytes() == lock
    assert open_host(home).evaluate().rows == 18  # the composed one's, from the store
    [drift] = [d for d in take_status(home).drift if d.id == "backbone"]
    assert drift.kind == "broken" and "a-toy" in drift.installed


def test_the_one_that_is_named_by_its_distribution_is_taken(installed, home, intruder) -> None:
    """Control of the refusal: who says which one means it gets that one, and it is a change."""
    first = open_host(home).recompose()
    installed.install(intruder)
    second = open_host(home, "red-backbone-toy").recompose(locked=True)
    assert second.router.digest == first.router.digest
    with pytest.raises(CompositionError, match="backbone is changed"):
        open_host(home, "a-toy").recompose(locked=True)
    assert open_host(home, "red-backbone-toy").evaluate().rows == 18


def test_a_backbone_replaced_by_rows_of_others_is_drift(installed, home, intruder) -> None:
    """Its fingerprint covers tensors, tokenizer and pooling; its package has more than these."""
    open_host(home).recompose()
    assert [d for d in take_status(home).drift if d.id == "backbone"] == []
    installed.uninstall("red-backbone-toy")
    installed.install(intruder)
    [drift] = [d for d in take_status(home).drift if d.id == "backbone"]
    assert drift.kind == "changed"
    lock = (home / LOCK).read_bytes()
    with pytest.raises(CompositionError, match="backbone is changed"):
        open_host(home).recompose(locked=True)
    assert (home / LOCK).read_bytes() == lock


def test_locked_writes_the_lock_that_it_followed(
    installed, home, backbone_folder, expert_folders, tmp_path
) -> None:
    """The same bytes under other names are what is locked, and the lock goes on naming the old."""
    open_host(home).recompose()
    lock = (home / LOCK).read_bytes()
    for dist, project in (
        ("red-backbone-toy", backbone_folder.parents[1]),
        ("red-expert-red", expert_folders["red"].parents[1]),
    ):
        installed.uninstall(dist)
        installed.install(renamed(project, tmp_path / dist, f"other-{dist}"))
    assert open_host(home).recompose(locked=True).generation == 2
    assert (home / LOCK).read_bytes() == lock
    open_host(home).recompose()
    assert (home / LOCK).read_bytes() != lock


def test_status_shows_the_second_backbone(installed, home, intruder, capsys) -> None:
    open_host(home).recompose()
    installed.install(intruder)
    with pytest.raises(SystemExit) as e:
        main(["status", "--home", str(home)])
    out = capsys.readouterr().out
    assert not e.value.code and "a-toy 0.1.0 and red-backbone-toy 0.1.0" in out


# -- a member's distribution that holds another expert ---------------------------------------------


def answers(home: Path) -> list[tuple[str, float | None]]:
    return [(a.label, a.probability) for a in open_host(home).predict(TEXTS)]


@pytest.fixture
def replaced(installed, home, build_expert, tmp_path) -> object:
    """The environment in which pip replaced red's distribution by one with another id."""
    open_host(home).recompose()
    other = build_expert(tmp_path / "built", "red", expert_id="crimson").parents[1]
    installed.uninstall("red-expert-red")
    installed.install(renamed(other, tmp_path / "other", "red-expert-red"))
    return installed


def test_a_member_replaced_by_pip_is_not_silently_withdrawn(replaced, home) -> None:
    before = answers(home)
    with pytest.raises(HarmError, match=r"expert 'red' .* replaced by another") as e:
        open_host(home).recompose()
    assert "'crimson' in red-expert-red 0.1.0" in e.value.found
    assert "redhost remove red" in e.value.hint and "\n" not in str(e.value)
    assert open_host(home).generations.current() == 1 and answers(home) == before


def test_it_is_let_go_by_its_id(replaced, home, capsys) -> None:
    with pytest.raises(SystemExit) as e:
        main(["remove", "red", "--home", str(home), "--backbone", "toy"])
    assert not e.value.code or "--backbone" in capsys.readouterr().err
    if e.value.code:  # a command without that option
        open_host(home).detach("red")
    receipt = open_host(home).recompose(accept=True)
    assert set(receipt.experts) == {"blue", "crimson", "green"}


def test_a_member_that_was_uninstalled_is_withdrawn(installed, home) -> None:
    """Control: who uninstalls a distribution named it."""
    open_host(home).recompose()
    installed.uninstall("red-expert-red")
    assert open_host(home).recompose().withdrawn == ("red",)
