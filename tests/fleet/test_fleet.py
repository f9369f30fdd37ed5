"""Generations go up and come down whole; a stage is moved by one writer at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from redhost_fleet.fleet import Fleet
from redhost_fleet.storage import Storage, open_storage

import redhost

TEXTS = ["What is 37 plus 12?", "What is 5 plus 6?"]


class Failing:
    """A store that stops taking files after some."""

    def __init__(self, storage: Storage, writes: int) -> None:
        self.storage, self.left, self.url = storage, writes, storage.url
        self.read, self.names, self.remove = storage.read, storage.names, storage.remove

    def _write(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise redhost.errors.StoreError("the connection was lost")

    def create(self, name: str, data: bytes) -> bool:
        self._write()
        return self.storage.create(name, data)

    def write(self, name: str, data: bytes) -> None:
        self._write()
        self.storage.write(name, data)


def test_a_generation_comes_down_as_it_went_up(fleet, author, open_host, tmp_path) -> None:
    sent = fleet.push(author.generations, 2)
    assert 0 < sent.sent == sent.bytes
    assert fleet.push(author.generations, 2).sent == 0
    assert fleet.push(author.generations, 3).sent < sent.bytes / 2  # the experts are there

    other = open_host(tmp_path / "other")
    record = fleet.pull(other.generations, 2)
    assert record == author.generations.load(2)
    assert other.generations.current() is None  # it is there, and nobody uses it yet
    other.rollback(2)
    author.rollback(2)
    assert other.predict(TEXTS) == author.predict(TEXTS)
    assert fleet.numbers() == [2, 3]


def test_a_push_that_is_stopped_can_be_gone_on_with_and_nobody_sees_it(
    store, author, open_host, tmp_path
) -> None:
    storage, other = open_storage(store), open_host(tmp_path / "other")
    with pytest.raises(redhost.errors.StoreError, match="lost"):
        Fleet(Failing(storage, 5)).push(author.generations, 1)
    fleet = Fleet(storage)
    assert fleet.numbers() == []
    for ask in (
        lambda: fleet.pull(other.generations, 1),
        lambda: fleet.promote(1),
    ):
        with pytest.raises(redhost.errors.UnknownNameError):
            ask()
    again = fleet.push(author.generations, 1)
    assert again.sent < again.bytes
    assert fleet.pull(other.generations, 1).number == 1


def _objects(fleet: Fleet, author: redhost.Host) -> list[str]:
    fleet.push(author.generations, 1)
    return [f"objects/{sha}" for sha in fleet.storage.names("objects")]


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_object_is_noticed_and_the_home_stays_as_it_was(
    fleet, author, open_host, tmp_path, damage
) -> None:
    names = _objects(fleet, author)
    name = max(names, key=lambda x: len(fleet.storage.read(x)))
    data = fleet.storage.read(name)
    if damage == "gone":
        fleet.storage.remove(name)
    else:
        fleet.storage.write(
            name, data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1])
        )
    other = open_host(tmp_path / "other")
    with pytest.raises(redhost.errors.IntegrityError, match="damaged"):
        fleet.pull(other.generations, 1)
    assert other.generations.numbers() == ()
    if damage == "gone":
        with pytest.raises(redhost.errors.IntegrityError, match="not whole"):
            fleet.promote(1)
    fleet.storage.remove(name)  # as the message says
    assert fleet.push(author.generations, 1).sent == len(data)
    assert fleet.pull(other.generations, 1).number == 1


@pytest.mark.parametrize(
    "damage",
    ["store/*/expert.safetensors", "store/*/model.safetensors", "generations/2/*", "generations"],
)
def test_a_home_that_is_damaged_is_made_whole_by_the_next_pull(
    fleet, author, open_host, tmp_path, damage
) -> None:
    fleet.push(author.generations, 2)
    other = open_host(tmp_path / "other")
    fleet.pull(other.generations, 2)
    other.rollback(2)
    home = Path(other.home)
    files = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    store = next(p for p in home.glob("store/*/expert.safetensors"))
    store.write_bytes(store.read_bytes()[:-1])
    for path in home.glob(damage):
        shutil.rmtree(path) if path.is_dir() else path.write_bytes(path.read_bytes()[:-1])
    moved: list[int] = []
    assert fleet.pull(other.generations, 2, progress=lambda done, _: moved.append(done)).number == 2
    assert {p: p.read_bytes() for p in files} == files and moved
    fleet.pull(other.generations, 2, progress=lambda *_: pytest.fail("all of it is here"))
    assert open_host(home).predict(TEXTS)[0].generation == 2


def test_a_number_belongs_to_who_pushed_it_first(fleet, author, open_host, tmp_path) -> None:
    fleet.push(author.generations, 1)
    other = open_host(tmp_path / "other")
    other.recompose(router="evidence", seed=5, accept=True)
    with pytest.raises(redhost.errors.StaleGenerationError, match="another generation 1"):
        fleet.push(other.generations, 1)
    with pytest.raises(redhost.errors.StoreError, match="another generation 1"):
        fleet.pull(other.generations, 1)
    assert other.generations.numbers() == (1,)  # and it is the home's own still
    assert other.predict(TEXTS)[0].generation == 1


def test_of_two_that_promote_at_once_one_wins_and_the_other_learns_who(fleet, author) -> None:
    for number in (1, 2, 3):
        fleet.push(author.generations, number)
    first = fleet.promote(1, why="begin")
    outcomes: list[object] = []
    start = threading.Barrier(2)

    def promote(number: int) -> None:
        mine = Fleet(fleet.storage.url)
        start.wait()
        try:
            outcomes.append(mine.promote(number, after=first))
        except redhost.errors.StaleGenerationError as e:
            outcomes.append(e)

    threads = [threading.Thread(target=promote, args=(n,)) for n in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [lost] = [x for x in outcomes if isinstance(x, redhost.errors.StaleGenerationError)]
    [won] = [x for x in outcomes if not isinstance(x, Exception)]
    assert f"generation {won.generation}" in lost.found and won.by in lost.found
    assert fleet.stages["production"].last() == won
    assert fleet.previous() == 1


def _promoting(url: str, number: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "redhost", "promote", str(number), "--fleet", url]
    return subprocess.Popen(
        [*command, "--json", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("first", [False, True], ids=["empty", "served"])
def test_promoters_in_processes_of_their_own_lose_no_entry_and_repeat_no_number(
    fleet, author, first
) -> None:
    for number in (1, 2, 3):
        fleet.push(author.generations, number)
    if first:
        fleet.promote(1)
    options = ("--expect", "1") if first else ()
    running = [_promoting(fleet.storage.url, number, *options) for number in (2, 3, 2, 3)]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in running]
    won = [json.loads(out) for out, _, code in ended if code == 0]
    log = fleet.stages["production"]
    entries = [log.read(n) for n in log.sequences()][first:]
    assert log.sequences() == [*range(1, len(won) + 1 + first)]
    assert {e.token: e.generation for e in entries} == {w["token"]: w["generation"] for w in won}
    if first:  # who expects generation 1 finds another one, and learns whose
        assert len(won) == 1
    for _, err, code in ended:
        assert code == 0 or (f"generation {won[0]['generation']}, by" in err or won[1:])


def test_of_many_that_promote_first_one_begins_the_log(fleet, author) -> None:
    for number in (1, 2):
        fleet.push(author.generations, number)
    outcomes, start = list[object](), threading.Barrier(8)

    def promote(number: int) -> None:
        mine = Fleet(fleet.storage.url)
        start.wait()
        try:
            outcomes.append(mine.promote(number, after=None))
        except redhost.errors.StaleGenerationError as e:
            outcomes.append(e)

    threads = [threading.Thread(target=promote, args=(1 + n % 2,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [won] = [x for x in outcomes if not isinstance(x, Exception)]
    assert fleet.stages["production"].sequences() == [1]
    lost = [x for x in outcomes if isinstance(x, redhost.errors.StaleGenerationError)]
    assert len(lost) == 7 and all(f"generation {won.generation}, by" in e.found for e in lost)


def test_a_stage_remembers_what_it_served(fleet, author) -> None:
    for number in (1, 2):
        fleet.push(author.generations, number)
        with pytest.raises(redhost.MissingError):
            fleet.previous()
        fleet.promote(number, why=f"number {number}")
    fleet.promote(2)
    assert fleet.previous() == 1
    log = fleet.stages["production"]
    entries = [log.read(n) for n in log.sequences()]
    assert [(e.generation, e.why) for e in entries] == [(1, "number 1"), (2, "number 2"), (2, "")]
    assert log.after(1) == entries[-1]
    assert log.after(3) is None


def test_gc_leaves_what_a_stage_serves_and_what_was_pushed_last(
    fleet, author, open_host, tmp_path
) -> None:
    for number in (1, 2, 3):
        fleet.push(author.generations, number)
    fleet.promote(1)
    before = set(fleet.storage.names("objects"))
    planned = fleet.gc(1, dry_run=True)
    assert planned.generations == (2,) and set(fleet.storage.names("objects")) == before
    done = fleet.gc(1)
    assert done == planned and done.objects > 0
    assert fleet.numbers() == [1, 3]
    assert len(fleet.storage.names("objects")) == len(before) - done.objects
    for number in (1, 3):
        assert fleet.pull(open_host(tmp_path / str(number)).generations, number).number == number
    with pytest.raises(redhost.errors.UnknownNameError):
        fleet.promote(2)


def test_what_means_nothing_is_refused(fleet, author) -> None:
    fleet.push(author.generations, 1)
    with pytest.raises(redhost.UsageError):
        fleet.promote(None)
    with pytest.raises(redhost.UsageError):
        fleet.promote(1, share=0.5)
    fleet.storage.write("stages/production/00000001.json", b"{")
    with pytest.raises(redhost.errors.StoreError, match="cannot understand"):
        fleet.stages["production"].last()


@pytest.mark.parametrize("marker", [b"[]", b'{"question": 5}', b"[" * 10**5, b"\xff", b""])
def test_a_store_whose_marker_is_odd_takes_nothing(fleet, author, marker) -> None:
    fleet.storage.write("redhost-fleet.json", marker)
    with pytest.raises(redhost.errors.StoreError, match="cannot understand"):
        fleet.push(author.generations, 1)
    assert fleet.numbers() == []


def test_an_object_that_was_made_larger_is_damaged(fleet, author, open_host, tmp_path) -> None:
    name = _objects(fleet, author)[0]
    fleet.storage.write(name, fleet.storage.read(name) + bytes(2**20))
    with pytest.raises(redhost.errors.IntegrityError, match="damaged"):
        fleet.pull(open_host(tmp_path / "other").generations, 1)


def test_a_home_that_lost_bytes_pushes_nothing(fleet, author) -> None:
    digest = author.generations.load(1).experts[0].digest
    shutil.rmtree(Path(author.home) / "store" / digest)
    with pytest.raises(redhost.errors.StoreError):
        fleet.push(author.generations, 1)
    assert fleet.numbers() == [] and fleet.storage.names("objects") == []


def test_each_question_has_a_store_of_its_own(fleet, store, author, open_host, tmp_path) -> None:
    home = tmp_path / "asking"
    shutil.copytree(author.home, home)
    spam = redhost.plugins.Generations(home / "questions" / "spam")
    record = author.generations.load(1)
    files = {name: author.generations.file(record, name) for name in record.files}
    settings = {**record.settings, "question": "spam"}
    with spam.writer() as writer:
        spam.publish(msgspec.structs.replace(record, settings=settings), files, writer=writer)
    fleet.push(author.generations, 1)
    with pytest.raises(redhost.errors.StoreError, match="another question's store"):
        fleet.push(spam, 1)
    own = Fleet(f"{store}/spam")
    own.push(spam, 1)
    other = open_host(tmp_path / "other").generations
    with pytest.raises(redhost.errors.StoreError, match="another question"):
        own.pull(other, 1)
    there = redhost.plugins.Generations(tmp_path / "other" / "questions" / "spam")
    assert own.pull(there, 1) == spam.load(1)
