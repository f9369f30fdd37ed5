"""The store: bytes by digest, never changed in place."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from redhost.registry import atomic
from redhost.registry.errors import IntegrityError, StoreError, short
from redhost.registry.home.store import Store
from redhost.registry.package.manifest import Base, dumps
from redhost.registry.package.readers import read_backbone, read_expert, read_manifest
from redhost.testing.fault_injection import fail_at

A, B = "a" * 64, "b" * 64
FILES = {"expert.json": b"{}", "expert.safetensors": b"weights"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_an_empty_store_has_nothing(store: Store) -> None:
    assert (store.digests(), store.has(A)) == (frozenset(), False)


def test_what_was_put_comes_back(store: Store, tmp_path: Path) -> None:
    store.put(FILES, digest=A)
    assert store.get(A) == FILES and store.file(A, "expert.json") == b"{}"
    assert store.has(A) and not store.has(B)
    assert (tmp_path / "home/store" / A / "expert.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("later", "size", "touched"),
    [
        (0, 1, False),
        (4.9, 1, False),
        (5.2, 1, True),
        (5.2, 20_000_000, False),
        (7, 20_000_000, True),
    ],
)
def test_a_copy_is_touched_if_a_file_is_much_younger_than_the_others(
    store: Store, later: float, size: int, *, touched: bool
) -> None:
    """Five seconds are allowed, and one more for each 50 MB."""
    store.put({**FILES, "weights": b""}, digest=A)
    copy = store.folder / A
    with (copy / "weights").open("r+b") as file:
        file.truncate(size)
    for path in (*copy.iterdir(), copy):
        os.utime(path, (1e9, 1e9))
    os.utime(copy / "weights", (1e9, 1e9 + later))
    assert store.is_touched(A) is touched


def test_five_seconds_exactly_are_allowed(store: Store) -> None:
    store.put({"weights": b""}, digest=A)
    os.utime(store.folder / A / "weights", (1e9, 1e9))
    for later, touched in ((5, False), (5.001, True)):
        os.utime(store.folder / A, (1e9, 1e9 + later))
        assert store.is_touched(A) is touched


def test_a_copy_that_is_gone_empty_or_an_older_folders_is_touched(store: Store) -> None:
    assert store.is_touched(A)
    store.put(FILES, digest=A)
    os.utime(store.folder / A, (1e9, 1e9))
    assert store.is_touched(A)
    (store.folder / B).mkdir()
    assert store.is_touched(B)


def test_only_digests_are_listed(store: Store) -> None:
    store.put(FILES, digest=A)
    (store.folder / "notes").mkdir()
    (store.folder / f"{A}x").mkdir()
    assert store.digests() == {A}


def test_equal_bytes_are_not_written_again(store: Store) -> None:
    store.put(FILES, digest=A)
    place = (store.folder / A).stat().st_ino
    store.put(dict(FILES), digest=A)
    assert (store.folder / A).stat().st_ino == place


@pytest.mark.parametrize("damage", ["changed", "lacking", "extra"])
def test_a_damaged_copy_is_replaced(store: Store, damage: str) -> None:
    store.put(FILES, digest=A)
    match damage:
        case "changed":
            (store.folder / A / "expert.json").write_bytes(b"")
        case "lacking":
            (store.folder / A / "expert.json").unlink()
        case "extra":
            (store.folder / A / "more.json").write_bytes(b"")
    store.put(FILES, digest=A)
    assert store.get(A) == FILES


def test_purge_removes_what_it_is_given_and_nothing_else(store: Store) -> None:
    store.put(FILES, digest=A)
    store.put(FILES, digest=B)
    store.purge([A, "c" * 64])
    assert store.digests() == {B}
    assert [*store.folder.rglob(f"{atomic.TEMPORARY}*")] == []


def test_what_is_not_here_is_stated_with_what_to_do(store: Store) -> None:
    store.put(FILES, digest=B)
    for digest, ask in (
        (A, lambda: store.get(A)),
        (A, lambda: store.file(A, "x")),
        (B, lambda: store.file(B, "x")),
    ):
        with pytest.raises(StoreError) as found:
            ask()
        assert str(found.value) == (
            f"cannot read sha256:{digest[:12]}… from the store: found nothing. "
            "Install the package if it is gone, then run 'redhost recompose --accept'."
        )
        assert isinstance(found.value.__cause__, FileNotFoundError)


def test_what_cannot_be_read_is_stated_in_the_systems_words(store: Store) -> None:
    store.put(FILES, digest=A)
    (store.folder / B).write_bytes(b"a file where a folder should be")
    with pytest.raises(StoreError, match="found Not a directory"):
        store.get(B)


@pytest.mark.parametrize("name", ["../x", ".hidden", "", "a/b", "a b", "x" * 101])
def test_names_that_are_not_plain_are_refused(store: Store, name: str) -> None:
    with pytest.raises(StoreError) as found:
        store.put({**FILES, name: b""}, digest=A)
    assert found.value.reason == f"cannot store: expected plain file names, found {name!r}"
    assert not store.has(A)


@pytest.mark.parametrize("digest", ["", "a" * 63, "a" * 65, "A" * 64, "../" + "a" * 61])
def test_no_other_word_is_a_digest(store: Store, digest: str) -> None:
    with pytest.raises(StoreError) as found:
        store.has(digest)
    assert found.value.reason == (
        f"no such digest: expected 64 hexadecimal digits, found {digest!r}"
    )


def test_a_full_disk_is_one_clear_line(store: Store) -> None:
    for step in (1, 2, 3):
        with fail_at(at=step), pytest.raises(StoreError) as found:
            store.put(FILES, digest=A)
        assert str(store.folder) in str(found.value)
    assert store.digests() == frozenset()


@pytest.fixture
def stored(store: Store, make_expert: Any) -> str:
    """The digest of an expert that is in the store."""
    files = make_expert("red")
    digest = read_expert(files).unwrap("red").digest
    store.put(files, digest=digest)
    return digest


def test_an_expert_comes_back_checked(store: Store, stored: str) -> None:
    files = store.expert(stored, name="red")
    assert (files.manifest.id, files.digest) == ("red", stored)


def test_a_backbone_comes_back_checked(store: Store, make_backbone: Any) -> None:
    files = {"backbone.json": dumps(make_backbone())}
    digest = read_backbone(files).unwrap("tiny").digest
    store.put(files, digest=digest)
    assert store.backbone(digest, name="tiny").manifest.id == "tiny"


def test_stored_bytes_of_another_digest_are_refused(
    store: Store, make_expert: Any, make_backbone: Any
) -> None:
    expert, backbone = make_expert("red"), {"backbone.json": dumps(make_backbone())}
    store.put(expert, digest=A)
    store.put(backbone, digest=B)
    for ask, digest, who, there in (
        (store.expert, A, "red", read_expert(expert)),
        (store.backbone, B, "tiny", read_backbone(backbone)),
    ):
        with pytest.raises(IntegrityError) as refused:
            ask(digest, name=who)
        error = refused.value
        assert repr(who) in error.problem and "'redhost recompose --accept'" in error.hint
        assert (error.expected, error.found) == (short(digest), short(there.unwrap(who).digest))


def test_what_passed_when_it_was_stored_is_not_held_to_later_rules(
    store: Store, make_expert: Any, make_backbone: Any
) -> None:
    """A host that is stricter than the one that composed goes on answering."""
    files = make_expert("red", change={"rank": 0})
    _, digest = read_manifest(files["expert.json"]).unwrap("red")
    store.put(files, digest=digest)
    assert read_expert(files).violations and store.expert(digest, name="red").manifest.rank == 0
    raw = dumps(make_backbone(base=Base(kind="hub", id="a/b")))  # no revision
    digest = sha256(f"manifest\0{sha256(raw).hexdigest()}\n".encode()).hexdigest()
    store.put({"backbone.json": raw}, digest=digest)
    assert read_backbone({"backbone.json": raw}).violations
    assert store.backbone(digest, name="tiny").manifest.base.revision == ""


def test_stored_bytes_that_are_no_expert_any_more_are_refused(store: Store, stored: str) -> None:
    (store.folder / stored / "expert.safetensors").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"^stored 'red': "):
        store.expert(stored, name="red")
    with pytest.raises(StoreError, match="found nothing"):
        store.expert(B, name="red")


def test_what_a_command_has_read_is_not_read_again(
    store: Store, make_expert: Any, make_backbone: Any
) -> None:
    expert = read_expert(make_expert("red")).unwrap("red")
    backbone = read_backbone({"backbone.json": dumps(make_backbone())}).unwrap("tiny")
    holding = Store(store.home, held=[expert, backbone])
    assert (holding.home, holding.folder) == (store.home, store.folder)
    assert holding.expert(expert.digest, name="red") is expert
    assert holding.backbone(backbone.digest, name="tiny") is backbone
    for read in (store.expert, holding.backbone):  # of the store itself, and as the other kind
        with pytest.raises(StoreError):
            read(expert.digest, name="red")
