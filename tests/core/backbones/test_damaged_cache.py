"""Damage in the feature cache: computed again and counted, never used, never an error."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.bus.task import CLASSIFICATION
from redhost.registry.atomic import damaged_entries

WIDTH = 24
TEXTS = [f"text {n} {'x' * (n % 7)}" for n in range(60)]


class Toy:
    """A backbone that is cheap: a row is made from the text's own letters."""

    width, device, layout, task = WIDTH, "cpu", None, CLASSIFICATION
    kernels, eps = "letters", 1e-5

    def __init__(self) -> None:
        self.encoded, self.trunk = 0, self

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        self.encoded += len(texts)
        rows = [torch.tensor([ord(c) for c in f"{t:<{WIDTH}}"[:WIDTH]]) for t in texts]
        return torch.stack(rows).float() / 7


def cache(folder: Path | None) -> FeatureCache:
    return FeatureCache(folder, backbone=Toy(), fingerprint="f")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """The one file of a cache that holds all rows."""
    made = cache(tmp_path / "features")
    made.encode(TEXTS)
    assert made.path is not None
    return made.path


def flip(path: Path, bit: int) -> None:
    with path.open("rb+") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0] ^ 1 << bit % 8
        file.seek(bit // 8)
        file.write(bytes([byte]))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


def test_no_flipped_bit_anywhere_in_the_file_changes_a_row(filled: Path, memory: Path) -> None:
    """Every bit of SQLite's header and schema, and 600 of the rest."""
    filled = Path(shutil.copytree(filled.parent, memory / "features")) / filled.name
    whole, right = filled.read_bytes(), Toy().encode(TEXTS)
    head = whole.index(b"PRIMARY KEY") + 60
    bits = {*range(8 * 100), *range(8 * (head - 180), 8 * head)}
    bits |= set(random.Random(5).sample(range(8 * len(whole)), 600))
    noticed = 0
    for bit in sorted(bits):
        filled.write_bytes(whole)
        flip(filled, bit)
        before, made = damaged_entries(filled.parent), cache(filled.parent)
        assert torch.equal(made.encode(TEXTS), right), bit
        again = cache(filled.parent)
        assert torch.equal(again.encode(TEXTS), right), bit
        # What is computed again was either counted, or not found any more.
        counted = damaged_entries(filled.parent) - before
        noticed += counted > 0
        assert counted <= 2 and made.backbone.encoded <= len(TEXTS), bit
    assert noticed > 400


def test_a_damaged_row_is_computed_again_once_and_counted_once(filled: Path) -> None:
    place = filled.read_bytes().index(Toy().encode(TEXTS[7:8]).numpy().tobytes())
    flip(filled, 8 * place + 3)
    for _ in range(2):
        assert torch.equal(cache(filled.parent).encode(TEXTS), Toy().encode(TEXTS))
    assert damaged_entries(filled.parent) == 1
    made = cache(filled.parent)
    made.encode(TEXTS)
    assert made.backbone.encoded == 0


def test_a_row_of_another_text_or_file_is_not_taken(filled: Path, tmp_path: Path) -> None:
    with sqlite3.connect(filled) as database:
        (row, digest), *_ = database.execute("SELECT row, digest FROM rows LIMIT 1")
        database.execute("UPDATE rows SET row = ?, digest = ?", (row, digest))
    database.close()
    made = cache(filled.parent)
    assert torch.equal(made.encode(TEXTS), Toy().encode(TEXTS))
    assert made.backbone.encoded == len(TEXTS) - 1
    other = FeatureCache(filled.parent, backbone=Toy(), fingerprint="g")
    assert other.path is not None
    other.path.write_bytes(filled.read_bytes())
    other.encode(TEXTS)
    assert other.backbone.encoded == len(TEXTS)


def test_control_without_digests_answers_with_damaged_rows(filled: Path, monkeypatch) -> None:
    from redhost.core.backbones import feature_cache

    monkeypatch.setattr(feature_cache.FeatureTable, "_digest", lambda *_: b"")
    with sqlite3.connect(filled) as database:
        database.execute("UPDATE rows SET digest = x''")
    database.close()
    place = filled.read_bytes().index(Toy().encode(TEXTS[7:8]).numpy().tobytes())
    flip(filled, 8 * place + 3)
    assert not torch.equal(cache(filled.parent).encode(TEXTS), Toy().encode(TEXTS))


@pytest.mark.parametrize("data", [b"", b"no database, " * 200, bytes(9000)])
def test_a_file_that_is_no_database_is_made_anew(filled: Path, data: bytes) -> None:
    filled.write_bytes(data)
    assert torch.equal(cache(filled.parent).encode(TEXTS), Toy().encode(TEXTS))
    made = cache(filled.parent)
    made.encode(TEXTS)
    assert made.backbone.encoded == 0
    assert damaged_entries(filled.parent) == bool(data)  # SQLite fills an empty file


def test_two_writers_do_not_stop_each_other(filled: Path) -> None:
    with sqlite3.connect(filled) as database:
        database.execute("BEGIN IMMEDIATE")
        made = cache(filled.parent)
        assert torch.equal(made.encode(TEXTS), Toy().encode(TEXTS))
        assert made.backbone.encoded == 0
        database.rollback()
    database.close()
