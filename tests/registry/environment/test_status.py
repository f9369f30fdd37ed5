from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redhost.registry.atomic import damaged_entries
from redhost.registry.environment import status as results
from redhost.registry.environment.status import (
    PackageStatus,
    ValidationCache,
    ValidationResult,
    check_packages,
)
from redhost.registry.wheel.policy import file_stamps

KEYS = [
    *("id", "dist", "version", "state", "code", "reason", "hint", "form", "rank"),
    *("writes", "backbone", "question", "editable"),
]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as settled at once."""
    monkeypatch.setattr(results, "UNSETTLED", -(10**12))


def by_dist(listings: tuple[PackageStatus, ...]) -> dict[str, tuple[str, str | None]]:
    return {one.package.dist: (one.state, one.code) for one in listings}


def test_the_ladder(site: Any, make_backbone: Any) -> None:
    site.expert("attached")
    site.expert("pending")
    site.expert("off")
    site.expert("foreign", change={"backbone.fingerprint": "e" * 64})
    site.expert("broken", change={"weights.sha256": "0" * 64})
    site.expert("garbled", raw={"expert.json": b"{"})
    site.install("empty", {})
    packages = site.experts()
    first = {x.id: x.digest or "" for x in check_packages(packages, backbone=make_backbone())}
    attached = {"attached": first["attached"], "pending": "0" * 64}
    found = check_packages(packages, backbone=make_backbone(), disabled={"off"}, attached=attached)
    assert by_dist(found) == {
        "red-expert-attached": ("attached", None),
        "red-expert-pending": ("enabled", None),
        "red-expert-off": ("compatible", "disabled"),
        "red-expert-foreign": ("valid", "backbone_mismatch"),
        "red-expert-broken": ("discovered", "weights_digest"),
        "red-expert-garbled": ("discovered", "manifest_json"),
        "empty": ("discovered", "package_files"),
    }
    assert [*found[0].to_json()] == KEYS
    assert json.dumps([one.to_json() for one in found])
    assert [x.id or x.package.module for x in found] == sorted(
        x.id or x.package.module for x in found
    )


def test_without_a_backbone_nothing_gets_beyond_valid(site: Any) -> None:
    site.expert("a")
    site.expert("b", change={"bus_api": ">=2"})
    assert by_dist(check_packages(site.experts(), backbone=None)) == {
        "red-expert-a": ("valid", None),
        "red-expert-b": ("valid", "bus_api"),
    }


def test_two_packages_of_one_id_both_fail_and_are_both_named(site: Any, make_backbone: Any) -> None:
    site.expert("math")
    site.expert("math", dist="mathpack")
    found = check_packages(site.experts(), backbone=make_backbone())
    assert {(x.state, x.code) for x in found} == {("valid", "duplicate_id")}
    assert "mathpack 0.1.0 and red-expert-math 0.1.0" in str(found[0].error())
    eased = check_packages(site.experts(), backbone=make_backbone(), disabled={"mathpack"})
    assert by_dist(eased) == {
        "mathpack": ("compatible", "disabled"),
        "red-expert-math": ("enabled", None),
    }


def test_errors_read_as_the_style_guide_says(site: Any, make_backbone: Any) -> None:
    site.expert(
        "fr",
        change={"reads.width": 512},
        weights={
            "U": np.ones((4, 512), "f4"),
            "V": np.ones((512, 4), "f4"),
        },
        width=512,
    )
    (found,) = check_packages(site.experts(), backbone=make_backbone())
    assert str(found.error()) == (
        "expert 'fr' (red-expert-fr 0.1.0) was not attached: reads.width: expected 16, the bus of "
        "backbone 'tiny', found 512. Retrain it on this backbone."
    )


def remembered(site: Any, home: Path, make_backbone: Any) -> tuple[PackageStatus, ...]:
    memory = ValidationCache(home / "cache" / "verdicts.json")
    return check_packages(site.experts(), backbone=make_backbone(), cache=memory)


@pytest.mark.usefixtures("settled")
def test_results_are_remembered(
    site: Any, home: Path, make_backbone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.expert("a")
    site.expert("b", change={"weights.sha256": "0" * 64})
    cold = remembered(site, home, make_backbone)
    monkeypatch.setattr(
        "redhost.registry.environment.status.read_expert", lambda _: pytest.fail("read")
    )
    assert remembered(site, home, make_backbone) == cold


@pytest.mark.usefixtures("settled")
def test_results_of_other_checks_are_forgotten(
    site: Any, home: Path, tmp_path: Path, make_backbone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "registry"
    shutil.copytree(Path(results.__file__).parents[1], code)
    monkeypatch.setattr(results, "__file__", str(code / "environment" / "status.py"))
    site.expert("a")
    remembered(site, home, make_backbone)
    assert ValidationCache(home / "cache" / "verdicts.json")._entries
    with (code / "package" / "rules.py").open("a") as file:
        file.write("# another check\n")
    assert ValidationCache(home / "cache" / "verdicts.json")._entries == {}


def overwrite(path: Path) -> None:
    """Change a file in place: same inode, same size, and the old mtime put back."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("rb+") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("name", ["expert.safetensors", "card.jsonl", "canary.safetensors"])
def test_a_changed_file_is_noticed(site: Any, home: Path, make_backbone: Any, name: str) -> None:
    folder = site.expert("a")
    assert remembered(site, home, make_backbone)[0].state == "enabled"
    time.sleep(0.02)
    overwrite(folder / name)
    assert remembered(site, home, make_backbone)[0].state == "discovered"


@pytest.mark.usefixtures("settled")
def test_control_with_a_stale_key_does_not_notice(
    site: Any, home: Path, make_backbone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "redhost.registry.environment.status.file_stamps",
        lambda folder, names: tuple((name, 0, 0, 0, 0) for name in sorted(names)),
    )
    folder = site.expert("a")
    assert remembered(site, home, make_backbone)[0].state == "enabled"
    overwrite(folder / "card.jsonl")
    assert remembered(site, home, make_backbone)[0].state == "enabled"  # wrong: what we guard


def test_young_files_are_not_remembered(site: Any, home: Path) -> None:
    folder = site.expert("a")
    memory = ValidationCache(home / "verdicts.json")
    (folder / "card.jsonl").touch()
    seen = file_stamps(folder, ["card.jsonl"])
    memory.remember(folder, seen, ValidationResult(digest="d"))
    assert memory.recall(folder, seen) is None


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b'{"schema":"other"}', b'{"entries":{"a":1}}']
)
def test_a_corrupt_memory_is_an_empty_one(
    site: Any, home: Path, make_backbone: Any, data: bytes
) -> None:
    site.expert("a")
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "verdicts.json").write_bytes(data)
    assert remembered(site, home, make_backbone)[0].state == "enabled"
    assert ValidationCache(home / "cache" / "verdicts.json")._entries


@pytest.mark.usefixtures("settled")
def test_no_flipped_bit_of_a_cached_result_is_shown(
    site: Any, home: Path, make_backbone: Any
) -> None:
    """Every one is another digest: all is checked again, and the damage counted."""
    site.expert("a")
    right, path = remembered(site, home, make_backbone), home / "cache" / "verdicts.json"
    data = path.read_bytes()
    assert ValidationCache(path)._entries
    for bit in range(0, 8 * len(data), 61):
        flip(path, data, bit)
        before = damaged_entries(path.parent)
        assert not ValidationCache(path)._entries
        assert damaged_entries(path.parent) == before + 1, path.read_bytes()[bit // 8 - 9 :][:20]
    for bit in range(0, 8 * len(data), 61 * 16):
        flip(path, data, bit)
        assert remembered(site, home, make_backbone) == right
    assert remembered(site, home, make_backbone) == right


def flip(path: Path, data: bytes, bit: int) -> None:
    """Write a file's bytes with one bit of them flipped."""
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)


LISTING = """
import sys
from pathlib import Path
from redhost.registry.package.discover import discover
from redhost.registry.environment.status import check_packages
from redhost.registry.environment.status import ValidationCache
found = check_packages(discover("expert"), backbone=None, cache=ValidationCache(Path(sys.argv[1])))
assert sum(x.state == "valid" for x in found) >= 100, found
assert not {"torch", "transformers", "red_expert_e0"} & sys.modules.keys()
print({"numpy", "packaging.specifiers"} & sys.modules.keys())
"""


def test_a_hundred_experts_are_checked_without_torch_and_without_numpy(
    site: Any, home: Path
) -> None:
    """Also where no verdict is remembered; importing numpy takes as long as all the checks."""
    for number in range(100):
        site.expert(f"e{number}")
    env = {**os.environ, "PYTHONPATH": str(site.folder)}
    command = [sys.executable, "-c", LISTING, str(home / "verdicts.json")]
    time.sleep(0.15)  # a file is remembered once it is older than its clock is coarse
    for _ in range(2):
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        assert done.stdout == "set()\n"
