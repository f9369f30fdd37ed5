"""`redhost upgrade`: newer versions of several experts in one generation, or nothing changes."""

from __future__ import annotations

import json
from typing import Any

from redhost_index.catalogue import write_catalogue
from release import write_index

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


def test_one_that_does_harm_is_refused_by_name_and_nothing_changes(harmful: Any) -> None:
    before, lock = harmful.predict(), harmful.lock()
    done = harmful.run("upgrade")
    assert done.returncode == 1
    assert "extra 0.1.0 was not upgraded to 0.3.0" in done.stderr and "harm" in done.stderr
    assert harmful.versions() == OLD and harmful.lock() == lock
    assert harmful.predict() == before and not (harmful.home / "sync").exists()


def test_with_keep_going_the_others_are_upgraded(harmful: Any) -> None:
    done = harmful.json("upgrade", "--keep-going", code=1)
    [refused] = done["refused"]
    assert (refused["id"], refused["version"]) == ("extra", "0.3.0")
    assert "harm" in refused["reason"]
    assert [x["id"] for x in done["upgraded"]] == ["more"]
    assert harmful.versions() == {**OLD, "red_expert_more": "0.2.0"}
    assert harmful.lock()["experts"]["extra"]["version"] == "0.1.0"
    done = harmful.json("upgrade", "extra", "--accept")
    assert [x["version"] for x in done["upgraded"]] == ["0.3.0"]


def test_only_those_that_were_named(world: Any) -> None:
    done = world.run("upgrade", "nobody")
    assert done.returncode == 2 and "nobody" in done.stderr
    done = world.json("upgrade", "more", "range1")
    assert [x["id"] for x in done["upgraded"]] == ["more"]
    assert [x["id"] for x in done["staying"]] == ["range1"]
    assert world.versions() == {**OLD, "red_expert_more": "0.2.0"}
    # Its next version is for another backbone.
    [staying] = world.json("upgrade", "more")["staying"]
    assert staying["reason"].startswith("0.3.0 backbone_mismatch")


def test_what_was_taken_away_is_not_brought_back(world: Any) -> None:
    world.venv.pip("uninstall", "--yes", "--quiet", "red-expert-extra")
    assert world.run("disable", "more").returncode == 0
    done = world.json("upgrade")
    assert done["upgraded"] == [] and "red_expert_extra" not in world.versions()
    reasons = {x["id"]: x["reason"] for x in done["staying"]}
    assert "not installed here" in reasons["extra"] and "disabled" in reasons["more"]
    assert [x["version"] for x in world.json("upgrade", "extra")["upgraded"]] == ["0.2.0"]


def test_bytes_that_are_not_promised_are_refused(world: Any) -> None:
    """A page or a catalogue that lies, and a wheel that is another's."""
    wheel = world.index.folder / "red_expert_extra-0.2.0-py3-none-any.whl"
    write_catalogue(world.index.folder)
    digest = sha256_hex(wheel.read_bytes())
    # The page promises nothing, the catalogue another wheel.
    world.index.edit("red-expert-extra", f"#sha256={digest}", "")
    path = world.index.folder / "catalogue.json"
    path.write_text(path.read_text().replace(digest, "3" * 64))
    done = world.run("upgrade")
    assert done.returncode == 1 and "other bytes than its catalogue promises" in done.stderr
    assert world.versions() == OLD
    world.restore_index()
    world.index.edit("red-expert-extra", digest, "4" * 64)
    write_catalogue(world.index.folder)
    done = world.run("upgrade", "extra")
    assert done.returncode == 1 and "other bytes than http" in done.stderr
    assert world.versions() == OLD


def test_an_index_that_is_gone_changes_nothing(world: Any) -> None:
    before = world.lock()
    gone = ("--index-url", "http://me:secret@127.0.0.1:9/simple")
    done = world.run("upgrade", *gone)
    assert done.returncode == 3 and done.stdout == "" and world.lock() == before
    assert done.stderr.count("\n") == 1 and "cannot read http://127.0.0.1:9" in done.stderr
    assert "secret" not in done.stderr
    others = world.json("upgrade", "--keep-going", *gone, code=1)
    assert others["upgraded"] == [] and {"extra", "more"} <= {x["id"] for x in others["refused"]}
    shown = world.run("outdated", "--index-url", "http://me:secret@127.0.0.1:9/simple")
    assert shown.returncode == 1 and "secret" not in shown.stdout + shown.stderr
    assert shown.stdout.count("cannot read") == 1


def test_every_question_gets_one_generation(world: Any, version_of: Any) -> None:
    folder, mood = world.index.folder, {"of": "range5", "question": "mood"}
    version_of("mood", "0.1.0", **mood).write(folder)
    write_index(folder)
    assert world.run("add", "red-expert-mood", "--index-url", world.index.url).returncode == 0
    version_of("mood", "0.2.0", domain="better", **mood).write(folder)
    write_index(folder)
    shown = world.json("outdated")["packages"]
    assert {x["id"]: x["question"] for x in shown if x["newest"]} == {
        "extra": "",
        "more": "",
        "mood": "mood",
    }
    done = world.json("upgrade")
    numbers = {name: receipt["generation"] for name, receipt in done["receipts"].items()}
    assert numbers == {"": 3, "mood": 2} and len(done["upgraded"]) == 3
    assert world.versions() == {**BOTH, "red_expert_mood": "0.2.0"}
