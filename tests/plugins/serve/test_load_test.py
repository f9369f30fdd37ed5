"""The load test, short: no request fails, no answer is mixed or stale; the control is caught."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from redhost_serve.client import Client
from redhost_serve.load_test import (
    Log,
    broken_swaps,
    clients,
    distinguishing_texts,
    golden_answers,
    load_test,
)
from redhost_serve.server import running

import redhost

TOKEN = "a token that nobody guesses"


def under_load(
    home: Path, open_live: Any, kind: type[redhost.Live], *, swaps: int
) -> tuple[Any, int, list[int], Any]:
    """Return what clients saw, how many answers were stale, the broken swaps' statuses."""
    texts = distinguishing_texts(
        redhost.Host.open(home, plugins=redhost.plugins.Plugins(())), (1, 2), 4
    )
    with running(open_live(home), token=TOKEN) as (url, _):
        golden = golden_answers(url, (1, 2), texts, token=TOKEN)
    with running(open_live(home, kind), token=TOKEN) as (url, service):
        log = Log(service.live.generation)
        with Client(url, token=TOKEN) as client, clients(url, 4, golden) as tally:
            broken = broken_swaps(home, 3)
            refused = load_test(client, log, good=(1, 2), broken=broken, swaps=swaps, seconds=1)
        return tally, tally.stale(log), refused, service.live


def test_swaps_under_load_fail_no_request_mix_none_and_serve_none_stale(
    home, open_live, until
) -> None:
    tally, stale, refused, live = under_load(home, open_live, redhost.Live, swaps=30)
    assert (tally.failed, tally.mixed, stale) == ([], [], 0)
    assert sorted(set(refused)) == [404, 412, 422] and len(refused) == 10
    assert {g for _, _, g in tally.seen} == {1, 2}
    until(lambda: live.alive() == (live.generation,))


def test_the_same_load_shows_a_swap_in_place(home, open_live, in_place) -> None:
    """Control of the test above."""
    tally, stale, _, _ = under_load(home, open_live, in_place, swaps=30)
    assert tally.mixed or stale


def test_an_answer_that_breaks_off_is_a_failure_and_the_client_goes_on() -> None:
    golden = {1: {"text": ["x"]}}
    server = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with clients(url, 1, golden) as tally:
        for _ in range(2):
            with server.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(2**16):
                    pass
        server.close()
    assert [f.partition("(")[0] for f in tally.failed[:2]] == ["IncompleteRead"] * 2


def test_the_log_knows_which_generations_may_answer() -> None:
    log = Log(1)
    log.add(began=10, ended=11, generation=2)
    log.add(began=20, ended=21, generation=1)
    assert log.allowed(1, 2) == {1}
    assert log.allowed(9, 10.5) == {1, 2}
    assert log.allowed(12, 13) == {2}
    assert log.allowed(12, 20.5) == {1, 2}
    assert log.allowed(22, 23) == {1}
