"""`redhost upgrade`: newer versions of several experts in one generation, or nothing changes."""

from __future__ import annotations

import json
import shutil
import socket
import time
from typing import Any

import pytest
from redhost_index.catalogue import write_catalogue
from release import write_index

from redhost.registry.home.generations import Generations
from redhost.registry.home.revoked import Revocation, Revocations, RevokedList
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.wheel import open_wheel

BOTH = {"red_expert_extra": "0.2.0", "red_expert_more": "0.2.0"}
NEW = "red_expert_extra-0.2.0-py3-none-any.whl"
OLD = {"red_expert_extra": "0.1.0", "red_expert_more": "0.1.0"}


def revoke(world: Any, *entries: dict[str, str]) -> None:
    """Let the home know of what is revoked, as `redhost revoked` stores it."""
    made = (Revocation(reason="leaks rows", revoked_at="2026-01-01", **entry) for entry in entries)
    lists = {"1" * 64: RevokedList(serial=1, entries=tuple(made))}
    generations = Generations(world.home)
    with generations.writer():
        generations.store.write_revocations(Revocations(lists=lists))


def digest_of(world: Any, version: str) -> str:
    wheel = open_wheel(world.index.folder / f"red_expert_extra-{version}-py3-none-any.whl")
    return wheel.expert.unwrap("extra").digest


def named(version: str, digest: str = "9" * 64) -> dict[str, str]:
    return {"digest": digest, "dist": "red-expert-extra", "version": version}


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
    assert "'redhost add red-expert-extra==0.3.0 --index-url http://" in done.stderr
    assert "Another --router" not in done.stderr and "--keep-going" in done.stderr
    assert harmful.versions() == OLD and harmful.lock() == lock
    assert harmful.predict() == before and not (harmful.home / "sync").exists()


def test_with_keep_going_the_others_are_upgraded(harmful: Any) -> None:
    done = harmful.json("upgrade", "--keep-going", code=1)
    [refused] = done["refused"]
    assert (refused["id"], refused["version"]) == ("extra", "0.3.0")
    assert "harm" in refused["reason"]
    # The next lower version that fits is taken in its place.
    assert {x["id"]: x["version"] for x in done["upgraded"]} == {"extra": "0.2.0", "more": "0.2.0"}
    assert harmful.versions() == BOTH
    assert harmful.lock()["experts"]["extra"]["version"] == "0.2.0"
    done = harmful.json("upgrade", "extra", "--keep-going", code=1)
    assert [x["version"] for x in done["refused"]] == ["0.3.0"] and done["upgraded"] == []
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


def missing_wheel(world: Any) -> None:
    (world.index.folder / NEW).unlink()


def another_version_inside(world: Any) -> None:
    shutil.copy(world.index.folder / NEW.replace("0.2.0", "0.1.0"), world.index.folder / NEW)
    write_index(world.index.folder)


def another_package_inside(world: Any) -> None:
    shutil.copy(world.index.folder / NEW.replace("extra", "more"), world.index.folder / NEW)
    write_index(world.index.folder)


def cut_wheel(world: Any) -> None:
    path = world.index.folder / NEW
    path.write_bytes(path.read_bytes()[:-100])
    write_index(world.index.folder)


def login_page(world: Any) -> None:
    world.index.page("red-expert-extra").write_text("<title>Log in</title>")


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (missing_wheel, "HTTP 404"),
        (another_version_inside, "0.1.0"),
        (another_package_inside, "red-expert-more"),
        (cut_wheel, "other bytes"),
        (login_page, "another page"),
    ],
)
def test_an_index_that_lies_is_one_line_and_changes_nothing(
    world: Any, lie: Any, reason: str
) -> None:
    before, lock = world.versions(), world.lock()
    lie(world)
    done = world.run("upgrade", "extra")
    # What cannot be read fits nothing: it is named as such, and that nothing is left to do.
    first, *more = (done.stdout + done.stderr).splitlines()
    assert more == ([] if done.returncode else ["nothing to upgrade: nothing changed"])
    assert reason in first and len(first) < 600, first
    assert (world.versions(), world.lock()) == (before, lock)
    assert not (world.home / "sync").exists()
    world.restore_index()  # the control: it tells the truth
    assert [x["version"] for x in world.json("upgrade", "extra")["upgraded"]] == ["0.2.0"]


def test_an_index_that_says_nothing_is_one_line_in_time(world: Any) -> None:
    before, listener = world.lock(), socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/simple"
    start = time.monotonic()
    done = world.run("upgrade", "--index-url", url, "--timeout", "0.5")
    assert time.monotonic() - start < 20 and done.returncode == 3
    assert done.stderr.count("\n") == 1 and "timed out" in done.stderr and not done.stdout
    assert world.lock() == before
    listener.close()


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


@pytest.mark.parametrize("catalogued", [False, True])
@pytest.mark.parametrize("known", ["name", "digest"])
def test_of_a_revoked_version_the_next_lower_one_is_taken(
    world: Any, version_of: Any, known: str, catalogued: bool
) -> None:
    """A catalogue saves the download by which a digest is known; then `upgrade` tries the next."""
    folder = world.index.folder
    version_of("extra", "0.4.0", domain="sums, best").write(folder)
    write_index(folder)
    if catalogued:
        write_catalogue(folder)
    digest = digest_of(world, "0.4.0")
    revoke(world, named("0.4.0") if known == "name" else {"digest": digest})
    done = world.json("upgrade", "extra")
    assert [x["version"] for x in done["upgraded"]] == ["0.2.0"] and done["refused"] == []
    [left] = done["left"]
    assert (left["id"], left["version"]) == ("extra", "0.4.0") and "leaks rows" in left["reason"]
    assert world.versions()["red_expert_extra"] == "0.2.0"
    [staying] = world.json("upgrade", "extra")["staying"]
    assert staying["reason"] == "0.4.0 is revoked: leaks rows"


def test_what_is_revoked_is_named_by_outdated(world: Any) -> None:
    current = world.lock()["experts"]["extra"]["digest"]
    revoke(world, named("0.2.0"), named("0.1.0", current))
    shown = {x["id"]: x for x in world.json("outdated")["packages"]}
    assert shown["extra"]["revoked"] == "leaks rows" and shown["extra"]["newest"] == ""
    assert [(n["version"], n["revoked"]) for n in shown["extra"]["newer"]] == [
        ("0.2.0", "leaks rows")
    ]
    assert shown["more"]["revoked"] is None and shown["more"]["newest"] == "0.2.0"
    text = world.run("outdated").stdout
    add = f"'redhost add red-expert-extra==VERSION --index-url {world.index.url}'"
    assert f"0.1.0: revoked: leaks rows; next: {add}, or 'redhost recompose'" in text
    assert "0.1.0 → 0.2.0  revoked: leaks rows" in text
    reasons = {x["id"]: x["reason"] for x in world.json("upgrade", "--dry-run")["staying"]}
    assert reasons["extra"].startswith("it is revoked: leaks rows, and no newer version fits")


def test_a_revoked_version_in_use_is_upgraded(world: Any) -> None:
    revoke(world, named("0.1.0", world.lock()["experts"]["extra"]["digest"]))
    assert "next: 'redhost upgrade extra'" in world.run("outdated").stdout
    assert [x["version"] for x in world.json("upgrade", "extra")["upgraded"]] == ["0.2.0"]
    assert world.json("outdated")["packages"][0]["revoked"] is None


def test_a_yanked_version_in_use_with_nothing_newer(world: Any) -> None:
    page = world.index.page("red-expert-extra")
    [link] = [x for x in page.read_text().splitlines() if "extra-0.1.0" in x]
    page.write_text(link.replace("<a ", '<a data-yanked="too slow" '))
    done = world.json("upgrade")
    reasons = {x["id"]: x["reason"] for x in done["staying"]}
    assert reasons["extra"] == "it is yanked: too slow, and there is no newer version"
    text = world.run("outdated").stdout
    add = f"'redhost add red-expert-extra==VERSION --index-url {world.index.url}'"
    assert f"0.1.0: yanked: too slow; next: {add}" in text
