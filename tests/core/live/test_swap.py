"""A live host answers while generations change (S1–S6)."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

import redhost
from redhost.core.model.stored import GenerationLoader
from redhost.registry.home.revoked import Revocation, Revocations, RevokedList
from redhost.testing import assert_same_answers, fail_at

from .conftest import TEXTS, comparable, open_host, open_live


def test_it_starts_with_the_current_generation_and_names_it(home) -> None:
    live = open_live(home)
    assert live.generation == 2
    assert {a.generation for a in live.predict(TEXTS)} == {2}


def test_with_nothing_composed_it_starts_and_says_what_to_do(tmp_path) -> None:
    live = redhost.Live.open(tmp_path / "empty")
    assert (live.generation, live.refresh(), live.alive()) == (None, None, ())
    with pytest.raises(redhost.MissingError, match="Run 'redhost recompose'"):
        live.predict(TEXTS)
    with pytest.raises(redhost.MissingError):
        live.swap()


@pytest.mark.parametrize("number", [1, 2])
def test_a_swapped_host_answers_bit_for_bit_like_one_just_opened(home, number) -> None:
    live = open_live(home)
    live.swap(3 - number)
    live.swap(number)
    fresh = open_host(home).load(number)
    assert_same_answers(live.composed, fresh, TEXTS)
    assert comparable(live.predict(TEXTS)) == comparable(fresh.answer(TEXTS))


def test_after_a_swap_the_home_agrees_so_a_restart_serves_the_same(home) -> None:
    live = open_live(home)
    assert live.swap(1) == 1
    assert open_host(home).generations.current() == 1
    assert comparable(live.predict(TEXTS)) == comparable(open_host(home).predict(TEXTS))


def test_rollback_goes_to_the_parent_of_what_is_served(home) -> None:
    live = open_live(home)
    assert live.rollback(expected=2) == 1
    with pytest.raises(redhost.MissingError, match="generation 1 has no parent"):
        live.rollback()


def test_refresh_follows_what_another_process_made_current(home) -> None:
    live = open_live(home)
    open_host(home).rollback(1)
    assert (live.generation, live.refresh(), live.generation) == (2, 1, 1)
    before = live.composed
    assert live.refresh() == 1 and live.composed is before


def test_refresh_leaves_what_is_revoked_meanwhile(home) -> None:
    live = open_live(home)
    generations = live.host.generations
    first, second = (generations.load(n).digests() for n in (1, 2))

    def revoke(*digests: str, serial: int) -> None:
        entries = tuple(Revocation(digest=d, reason="bad", revoked_at="now") for d in digests)
        one = RevokedList(serial=serial, entries=entries)
        generations.store.write_revocations(Revocations(lists={"key": one}))

    live.swap(1)
    revoke(*first - second, serial=1)
    assert (live.generation, live.refresh()) == (1, 2)
    assert live.refresh() == 2 and live.predict(TEXTS)
    revoke(*second | first, serial=2)
    assert live.refresh() is None and live.refresh() is None
    with pytest.raises(redhost.errors.ContractError, match="bad"):
        live.predict(TEXTS)
    revoke(serial=3)
    assert live.refresh() == 2


def test_a_change_from_a_stale_view_is_refused_and_changes_nothing(home) -> None:
    live = open_live(home)
    for change in (lambda: live.swap(1, expected=1), lambda: live.rollback(expected=1)):
        with pytest.raises(redhost.errors.StaleGenerationError, match="found generation 2"):
            change()
    assert live.generation == open_host(home).generations.current() == 2


def test_a_concurrent_swap_is_refused(home, monkeypatch) -> None:
    live = open_live(home)
    inside, go_on = threading.Event(), threading.Event()
    read = GenerationLoader.read

    def slow(self: GenerationLoader, number: int) -> redhost.ComposedModel:
        inside.set()
        assert go_on.wait(30)
        return read(self, number)

    monkeypatch.setattr(GenerationLoader, "read", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(live.swap, 1)
        assert inside.wait(30)
        with pytest.raises(redhost.errors.SwapInProgressError, match="another swap is under way"):
            live.swap(2)
        assert live.predict(TEXTS)[0].generation == 2  # the old one answers meanwhile
        go_on.set()
        assert first.result() == 1


def test_unload_stops_answering_until_the_next_swap(home) -> None:
    live = open_live(home)
    live.unload(expected=2)
    with pytest.raises(redhost.MissingError):
        live.predict(TEXTS)
    assert live.swap() == 2


def test_records_of_the_fixture_are_what_they_say(home) -> None:
    records = open_host(home).generations.history()
    assert [(r.number, r.parent, len(r.experts)) for r in records] == [(1, None, 3), (2, 1, 2)]
    assert msgspec.json.decode(open_host(home).generations.file(1, "receipt.json"))["generation"]


@pytest.mark.parametrize("there", [True, False])
def test_on_a_full_disk_a_generation_is_served_without_a_lease(home, there) -> None:
    """Control: with room for it, the lease is there."""
    with open_host(home) as host:
        leases = host.generations.leases
    if not there:
        shutil.rmtree(leases.folder, ignore_errors=True)
    with fail_at(name="write_file"), fail_at(name="make_folder"):
        full = open_live(home)
        assert full.generation == 2 and leases.live() == ()
        answers = comparable(full.predict(TEXTS))
    live = open_live(home)
    assert comparable(live.predict(TEXTS)) == answers
    assert [x.generation for x in leases.live()] == [2]
