"""Homes within a home: where they lie, what they share, and that none touches another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.errors import IntegrityError, LockHeldError, StoreError, UsageError
from redhost.registry.home.composition import (
    BackboneRecord,
    Composition,
    Member,
    RouterRecord,
)
from redhost.registry.home.generations import Generations, drop_copies
from redhost.registry.home.questions import (
    cache_of,
    composed_questions,
    home_of,
    homes_with,
    place_of,
    question_of,
    recorded_place,
    root_of,
)
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.queries.inventory import take_inventories, take_status
from redhost.registry.queries.settings import disabled_names, set_disabled
from redhost.testing.fault_injection import kill_at_every_step

Publish = Callable[..., Composition]


def publish(home: Path, *ids: str) -> Composition:
    """Publish a composition of made-up experts."""
    generations, members = Generations(home), []
    with generations.writer() as writer:
        for expert_id in ids:
            data = f"bytes of {expert_id}".encode()
            digest = sha256_hex(data)
            generations.store.put({"expert.json": data}, digest=digest)
            members.append(
                Member(id=expert_id, dist=f"red-{expert_id}", version="1", digest=digest)
            )
        router = RouterRecord(kind="k", level="full", digest="", seed=0, columns=ids)
        draft = Composition(
            backbone=BackboneRecord(id="tiny", fingerprint="f" * 64),
            experts=tuple(members),
            router=router,
        )
        return generations.publish(draft, {"router.safetensors": b"router"}, writer=writer)


@pytest.fixture
def named(home: Path) -> dict[str | None, Path]:
    """The homes of a home's own question and of two named ones, each with two generations."""
    homes = {name: home_of(home, name) for name in (None, "spam", "topic")}
    for name, where in homes.items():
        publish(where, f"{name}-a", "shared")
        publish(where, f"{name}-b", "shared")
    return homes


def contents(home: Path) -> dict[str, bytes]:
    shared = {"store", "cache", "questions", "writer.lock", "writer.pid"}
    files = {p.relative_to(home): p for p in home.rglob("*") if p.is_file()}
    return {str(n): p.read_bytes() for n, p in files.items() if n.parts[0] not in shared}


def test_a_questions_home_lies_in_its_home_and_shares_store_and_cache(home, named) -> None:
    spam = named["spam"]
    assert spam == home / "questions" / "spam" == home_of(named["topic"], "spam")
    assert (question_of(spam), question_of(home)) == ("spam", None)
    assert root_of(spam) == root_of(home) == home
    assert cache_of(spam) == cache_of(home) == home / "cache"
    assert homes_with(spam) == homes_with(home) == tuple(named.values())
    assert composed_questions(home) == ("spam", "topic") and composed_questions(spam) == ()
    assert Generations(spam).store.digests() == Generations(home).store.digests()
    assert take_status(home).questions == {"spam": 2, "topic": 2}


@pytest.mark.parametrize("name", ["", "Spam", "../up", "a/b", ".hidden", "a" * 65, "ä", "a\n"])
def test_what_cannot_be_a_name_is_refused(home, name) -> None:
    with pytest.raises(UsageError) as e:
        home_of(home, name)
    assert e.value.found == repr(name)


def test_a_home_made_before_in_a_folder_of_that_name_stays_a_home(tmp_path) -> None:
    old = tmp_path / "questions" / "spam"
    (old / "store").mkdir(parents=True)
    publish(old, "a")
    assert (question_of(old), root_of(old)) == (None, old)
    assert Generations(old).store.folder == old / "store"
    assert homes_with(tmp_path) == (tmp_path,) and composed_questions(tmp_path) == ()


def test_what_happens_in_one_question_changes_no_byte_of_another(named) -> None:
    spam = Generations(named.pop("spam"))
    before = {name: contents(where) for name, where in named.items()}
    publish(spam.home, "new")
    spam.rollback(1)
    spam.gc(1)
    with spam.leases.hold(1):
        assert {name: contents(where) for name, where in named.items()} == before
    drop_copies(spam, "spam-a")
    assert {name: contents(where) for name, where in named.items()} == before


def test_gc_and_purge_leave_what_another_question_needs(home, named) -> None:
    spam, topic = (Generations(named[name]) for name in ("spam", "topic"))
    publish(spam.home, "spam-c")
    shared = {m.digest for m in topic.load(1).experts if m.id == "shared"}
    assert len(spam.gc(1).digests) == 2  # its own a and b: all others need what they share
    assert shared <= topic.store.digests()
    assert drop_copies(spam, "shared").digests == ()
    for name in (None, "topic"):
        generations = Generations(named[name])
        for number in generations.numbers():
            assert generations.load(number).digests() <= generations.store.digests()
    (named["topic"] / "generations" / "1" / "composition.json").write_text("{}")
    with pytest.raises(IntegrityError):  # nobody knows what it needs
        Generations(home).gc(1)


def test_one_writer_writes_at_a_time_to_all_of_a_home(named) -> None:
    own, spam = Generations(named[None]), Generations(named["spam"])
    with own.writer() as writer:
        with pytest.raises(LockHeldError), spam.writer(timeout=0):
            pass
        with pytest.raises(StoreError):
            spam.publish(spam.load(1), {}, writer=writer)


def test_a_kill_at_any_step_leaves_a_whole_generation_and_the_others_alone(home, named) -> None:
    command = [sys.executable, __file__, str(home)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    problems = json.loads(done.stdout)
    assert len(problems) > 60 and set(problems) == {None}


def problems_of_kills(home: Path) -> list[str | None]:
    """Return what each kill of a writer leaves wrong, in a home with questions."""
    named = {name: home_of(home, name) for name in (None, "spam", "topic")}
    spam = named.pop("spam")
    before = {name: contents(where) for name, where in named.items()}

    def change() -> None:
        publish(spam, "again")
        Generations(spam).gc(2)

    def check() -> str | None:
        found, generations = {n: contents(where) for n, where in named.items()}, Generations(spam)
        if found != before:
            return "another question changed"
        for where in (spam, *named.values()):
            record = Generations(where).load(Generations(where).current() or 0)
            if not record.digests() <= generations.store.digests():
                return f"bytes of {where} are gone"
        with generations.writer():
            left = generations.leftovers()
        return f"left over: {left}" if left else None

    return [kill.problem for kill in kill_at_every_step(change, check)]


def test_what_is_off_is_off_in_every_question(named) -> None:
    set_disabled(named["spam"], "shared")
    assert disabled_names(named[None]) == disabled_names(named["topic"]) == {"shared"}


def test_experts_are_listed_by_question_each_held_to_its_own(home, site: Any) -> None:
    site.expert("plain")
    site.expert("filter", change={"question": "spam"})
    site.expert("garbled", raw={"expert.json": b"{"})
    site.expert("odd", change={"question": "No Name"})
    found = take_inventories(home)
    ours = {"plain", "filter", "garbled", "odd"}
    by_question = {
        name: {x.package.dist.removeprefix("red-expert-") for x in inventory.statuses} & ours
        for name, inventory in found.items()
    }
    assert by_question == {None: {"plain", "garbled", "odd"}, "spam": {"filter"}}
    [odd] = [x for x in found[None].statuses if x.package.dist == "red-expert-odd"]
    assert odd.code == "manifest_field" and odd.reason and odd.reason.startswith("question:")
    [spam] = found["spam"].statuses
    assert json.loads(json.dumps(spam.to_json()))["question"] == "spam"
    aside = take_inventories(home_of(home, "spam"))["spam"].other_questions
    assert [x.id for x in aside if x.package.dist.removeprefix("red-expert-") in ours] == ["plain"]


@pytest.mark.parametrize(
    ("place", "recorded"),
    [
        ("https://index.example/simple", "https://index.example/simple"),
        ("/srv/project/dist", "../dist"),
        ("/srv/project/dist/a.whl", "../dist/a.whl"),
        ("/srv/wheels", "/srv/wheels"),
        ("/srv/project-2/dist", "/srv/project-2/dist"),
        ("", ""),
    ],
)
def test_places_in_the_project_are_named_from_the_lock(place: str, recorded: str) -> None:
    home = Path("/srv/project/.redhost")
    assert recorded_place(place, home) == recorded
    assert recorded_place(recorded, home) == recorded  # as an earlier lock has it
    assert place_of(recorded, home) == place
    named = home / "questions" / "topic"
    assert place_of(recorded_place(place, named), named) == place
    moved = Path("/home/me/.redhost")
    assert place_of(recorded, moved) == place.replace("/srv/project/", "/home/me/")


if __name__ == "__main__":  # forks of a process that has not imported torch
    sys.stdout.write(json.dumps(problems_of_kills(Path(sys.argv[1]))))
