"""`redhost upgrade`: newer versions of several experts in one generation, or nothing changes."""

from __future__ import annotations

import json
from typing import Any

from redhost.registry.package.safetensors_check import sha256_hex

BOTH = {"red_expert_extra": "0.2.0", "red_expert_more": "0.2.0"}
OLD = {"red_expert_extra": "0.1.0", "red_expert_more": "0.1.0"}


def test_all_newer_versions_that_fit_become_one_generation(world: Any) -> None:
    before = json.loads((world.home / "redhost.lock").read_bytes())
    shown = world.json("upgrade", "--dry-run")
    assert world.versions() == OLD and world.lock() == before
    done = world.json("upgrade")
    assert {x["id"]: (x["before"], x["version"]) for x in done["upgraded"]} == {
        "extra": ("0.1.0", "0.2.0"),
        "more": ("0.1.0", "0.2.0"),
    }
    assert shown["upgraded"] == done["upgraded"]
    [receipt] = done["receipts"].values()
    assert receipt["generation"] == 3 and {"extra", "more"} <= receipt["experts"].keys()
    assert world.versions() == BOTH
    experts = world.lock()["experts"]
    wheel = world.index.folder / "red_expert_more-0.2.0-py3-none-any.whl"
    assert experts["more"]["version"] == "0.2.0"
    assert experts["more"]["wheel"] == sha256_hex(wheel.read_bytes())
    assert experts["more"]["source"] == world.index.url
    assert not (world.home / "sync").exists()
    again = world.json("upgrade")
    assert again["upgraded"] == [] and again["receipts"] == {}
    assert world.json("status")["drift"] == []
