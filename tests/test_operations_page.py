"""What docs/operations.md and docs/authoring.md promise and no other test shows."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from redhost_author.testing import backbone_project

import redhost

ROOT = Path(__file__).parents[1]
TEXTS = ["apples 7", "pears 8", "nothing at all"]
BACKUP = ("store", "generations", "current", "redhost.lock")
"""What the page says a backup needs; `disabled.json` is there once something was switched off."""


def opened(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="tiny-random")


@pytest.fixture
def composed(redhost_fake_expert, tmp_path) -> Path:
    """A home with two experts composed."""
    redhost_fake_expert("apples")
    redhost_fake_expert("pears")
    home = tmp_path / "home"
    opened(home).recompose()
    return home


def test_a_backup_answers_bit_for_bit_where_nothing_is_installed(
    composed, redhost_environment, tmp_path
) -> None:
    before = opened(composed).predict(TEXTS)
    backup = tmp_path / "backup"
    backup.mkdir()
    for name in BACKUP:
        copy = shutil.copytree if (composed / name).is_dir() else shutil.copy
        copy(composed / name, backup / name)
    for dist in ("red-expert-apples", "red-expert-pears", "red-backbone-tiny-random"):
        redhost_environment.uninstall(dist)
    assert opened(backup).predict(TEXTS) == before


def test_another_backbone_needs_another_home(composed, redhost_environment, tmp_path) -> None:
    other = backbone_project(tmp_path / "other" / "red-backbone-tiny-random", seed=1)
    redhost_environment.uninstall("red-backbone-tiny-random")
    redhost_environment.install(other)
    for accept in (False, True):
        with pytest.raises(redhost.errors.HarmError, match="backbone_mismatch"):
            opened(composed).recompose(accept=accept)
    with pytest.raises(redhost.MissingError, match="no installed expert can be attached"):
        opened(tmp_path / "next").recompose()


def test_an_expert_without_a_card_is_left_out_by_name(
    redhost_environment, redhost_fake_expert, tmp_path
) -> None:
    redhost_fake_expert("apples")
    folder = redhost_environment.package(redhost_fake_expert("pears"))
    manifest = json.loads((folder / "expert.json").read_text())
    manifest["card"] = {"kind": "none"}
    (folder / "expert.json").write_text(json.dumps(manifest))
    (folder / "card.jsonl").unlink()
    redhost_environment.seal("red-expert-pears")
    host = opened(tmp_path / "home")
    assert [x.state for x in host.list_experts() if x.id == "pears"] == ["enabled"]
    receipt = host.recompose()
    assert receipt.experts.keys() == {"apples"}
    assert ("pears", "card_rows") in {(x.id, x.code) for x in receipt.left_out}


def project_of(dist: str) -> dict[str, object]:
    folder = ROOT if dist == "redhost" else ROOT / "plugins" / dist
    return dict(tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"])


def needed(lines: object) -> Iterator[str]:
    """Yield our packages that requirements bring, and those that these need."""
    assert isinstance(lines, list)
    for line in lines:
        if match := re.match(r"(redhost-[a-z]+|red-backbone-[a-z]+)", line):
            yield match[0]
            yield from needed(project_of(match[0])["dependencies"])
        elif match := re.match(r"redhost\[([a-z]+)\]$", line):
            yield from needed(extras()[match[1]])


def extras() -> dict[str, object]:
    return dict(project_of("redhost")["optional-dependencies"])  # type: ignore[call-overload]


def test_the_page_names_our_packages_of_every_extra_for_an_index() -> None:
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    listed = page.partition("name all of ours, so")[2].partition(".\n\n")[0]
    named = dict[str, set[str]]()
    for part in listed.replace("(without `redhost-`)", "").split(";"):
        names, _, needs = part.partition(":")
        for extra in re.findall("`([a-z]+)`", names):
            words = {*re.findall("[a-z-]+", needs)} - {"also", "and"}
            named[extra] = {w if w.startswith("red-") else f"redhost-{w}" for w in words}
    hosts = {"all", "dev", "plot"}
    wanted = {e: {*needed(x)} - {f"redhost-{e}"} for e, x in extras().items() if e not in hosts}
    assert named == {extra: names for extra, names in wanted.items() if names}
