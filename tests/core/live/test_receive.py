"""A generation that another home published: whole, under its own number, and nothing else moves."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

import redhost
from redhost.registry.package.manifest import dumps

from .conftest import TEXTS, comparable, open_host


@pytest.fixture
def sent(home: Path) -> tuple[dict[str, bytes], dict[str, dict[str, bytes]]]:
    """The files of generation 1, and those of its backbone and experts by digest."""
    generations = open_host(home).generations
    record = generations.load(1)
    files = {name: generations.file(record, name) for name in record.files}
    files["composition.json"] = generations.record(1)
    return files, {digest: generations.store.get(digest) for digest in record.digests()}


def receive(home: Path, files: Mapping[str, bytes], packages: Mapping[str, dict[str, bytes]]):
    generations = open_host(home).generations
    with generations.writer() as writer:
        for digest, package in packages.items():
            generations.store.put(package, digest=digest)
        return generations.receive(1, files, writer=writer)


def test_it_answers_as_where_it_was_published(sent, home, tmp_path) -> None:
    files, packages = sent
    record = receive(tmp_path / "other", {**files, "stray": b"x"}, packages)
    other = open_host(tmp_path / "other")
    assert record == open_host(home).generations.load(1)
    assert other.generations.current() is None and other.generations.numbers() == (1,)
    assert not (tmp_path / "other/generations/1/stray").exists()
    other.rollback(1)
    assert comparable(other.predict(TEXTS)) == comparable(open_host(home).load(1).answer(TEXTS))
    assert receive(tmp_path / "other", files, packages) == record  # once more changes nothing


def test_bytes_that_are_not_those_that_were_published_are_refused(sent, tmp_path) -> None:
    files, packages = sent
    other = tmp_path / "other"
    for name, data in files.items():
        for wrong in (
            {**files, name: data[:-2] + b"??"},
            {n: d for n, d in files.items() if n != name},
        ):
            with pytest.raises(redhost.errors.IntegrityError):
                receive(other, wrong, packages)
    for digest, package in packages.items():
        name = max(package, key=lambda n: len(package[n]))
        last = package[name][-1] ^ 1
        wrong_package = {**package, name: package[name][:-1] + bytes([last])}
        with pytest.raises(redhost.RedhostError):
            receive(other, files, {**packages, digest: wrong_package})
    with pytest.raises(redhost.errors.StoreError, match="lacks bytes"):
        receive(tmp_path / "third", files, dict(list(packages.items())[1:]))
    assert open_host(other).generations.numbers() == ()
    assert receive(other, files, packages).number == 1


def test_a_record_that_names_a_path_writes_nothing_there(sent, tmp_path) -> None:
    files, packages = sent
    record = msgspec.json.decode(files["composition.json"], type=redhost.plugins.Composition)
    named = {**record.files, "../../planted": hashlib.sha256(b"x").hexdigest()}
    blank = msgspec.structs.replace(record, files=named, digest="")
    sealed = msgspec.structs.replace(blank, digest=hashlib.sha256(dumps(blank)).hexdigest())
    false = {**files, "composition.json": dumps(sealed), "../../planted": b"x"}
    with pytest.raises(redhost.errors.IntegrityError, match="planted"):
        receive(tmp_path / "other", false, packages)
    assert not list(tmp_path.rglob("planted"))


def test_a_number_that_is_taken_here_is_refused(sent, home, tmp_path) -> None:
    files, packages = sent
    other = open_host(tmp_path / "other")
    other.recompose(router="centroid", accept=True)
    mine = other.generations.record(1)
    with pytest.raises(redhost.errors.StoreError, match="another generation 1"):
        receive(tmp_path / "other", files, packages)
    assert other.generations.record(1) == mine
