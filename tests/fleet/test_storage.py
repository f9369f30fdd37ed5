"""Stores: files are there whole or not at all, and of two that create one, one wins."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from redhost_fleet.storage import open_storage

import redhost


def test_what_is_written_is_read_and_what_is_not_there_is_none(store: str) -> None:
    storage = open_storage(store)
    assert storage.read("stages/production/1.json") is None
    assert storage.names("stages/production") == []
    storage.write("stages/production/2.json", b"two")
    storage.write("stages/production/1.json", b"one")
    storage.write("stages/production/1.json", b"uno")
    assert storage.read("stages/production/1.json") == b"uno"
    assert storage.names("stages/production") == ["1.json", "2.json"]
    storage.remove("stages/production/1.json")
    storage.remove("stages/production/1.json")
    assert storage.names("stages/production") == ["2.json"]


def test_of_many_that_create_a_file_one_wins(store: str) -> None:
    storage = open_storage(store)
    won, start = [], threading.Barrier(8)

    def create(n: int) -> None:
        mine = open_storage(store)
        start.wait()
        if mine.create("entry", str(n).encode() * 1000):
            won.append(n)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("entry") == str(won[0]).encode() * 1000


def test_who_creates_a_file_again_knows_its_own_bytes(store: str) -> None:
    storage = open_storage(store)
    assert storage.create("entry", b"mine")
    assert storage.create("entry", b"mine")
    assert not storage.create("entry", b"another's")
    assert storage.read("entry") == b"mine"


def test_a_large_file_is_created_once_too(store: str) -> None:
    storage, data = open_storage(store), bytes(range(256)) * (9 * 2**12)
    assert storage.create("large", data)
    assert not storage.create("large", data[:-1])
    assert storage.read("large") == data


def test_a_store_that_does_not_answer_is_an_error_soon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    storage, start = open_storage("s3://nowhere/models"), time.monotonic()
    for ask in (
        lambda: storage.read("entry"),
        lambda: storage.create("entry", b""),
        lambda: storage.names("stages"),
    ):
        with pytest.raises(redhost.errors.StoreError, match="s3://nowhere/models"):
            ask()
    assert time.monotonic() - start < 30
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(redhost.errors.StoreError, match="file"):
        open_storage(str(tmp_path / "file")).write("entry", b"")


@pytest.mark.parametrize("url", ["ftp://host/x", "memory://x", "https://host/x"])
def test_a_store_that_may_let_two_win_is_refused(url: str) -> None:
    with pytest.raises(redhost.errors.SettingsError, match="two writers"):
        open_storage(url)
