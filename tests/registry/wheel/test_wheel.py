"""Reading packages out of wheels: the container, and who the wheel says it is."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from redhost.registry.errors import RedhostError
from redhost.registry.package.readers import read_expert
from redhost.registry.wheel.archive import ArchiveError, read_archive
from redhost.registry.wheel.wheel import open_wheel, read_wheel


def codes(path: Path) -> list[str]:
    return [v.code for v in read_wheel(path).violations]


def test_reads_an_expert_without_installing_it(draft: Any, tmp_path: Path) -> None:
    drafted = draft("a")
    path = drafted.write(tmp_path)
    found = open_wheel(path)
    assert (str(found.package), found.name) == ("red-expert-a 0.1.0", path.name)
    assert found.data == path.read_bytes() and len(found.sha256) == 64
    own = {n.rpartition("/")[2]: d for n, d in drafted.members.items() if n.endswith("expert.json")}
    assert found.files["expert.json"] == own["expert.json"]
    assert "__init__.py" not in found.files
    assert read_expert(found.files).value


def without(suffix: str) -> Callable[[Any], None]:
    def change(draft: Any) -> None:
        draft.members = {n: d for n, d in draft.members.items() if not n.endswith(suffix)}

    return change


def result(suffix: str, data: bytes) -> Callable[[Any], None]:
    def change(draft: Any) -> None:
        draft.members |= {n: data for n in draft.members if n.endswith(suffix)}

    return change


def bring(name: str, data: bytes = b"") -> Callable[[Any], None]:
    def change(draft: Any) -> None:
        draft.members[name] = data

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without("METADATA"), "package_files"),
        (without("WHEEL"), "package_files"),
        (without("entry_points.txt"), "package_files"),
        (result("entry_points.txt", b"[redhost.experts]\na = x.y\n"), "package_files"),
        (result("entry_points.txt", b"[redhost.experts]\na = x\nb = y\n"), "package_files"),
        (result("entry_points.txt", b"\xff"), "package_files"),
        (bring("b-1.dist-info/METADATA"), "package_files"),
        (result("METADATA", b"Name: somebody-else\nVersion: 0.1.0\n"), "archive_wheel"),
        (result("METADATA", b"Name: red-expert-a\nVersion: 2\n"), "archive_wheel"),
        (bring("/x"), "archive_name"),
        (bring("a/../../x"), "archive_name"),
        (bring("a\\b"), "archive_name"),
        (bring("C:x"), "archive_name"),
        (bring("red_expert_a/big", bytes(64 * 2**20 + 1)), "archive_size"),
    ],
)
def test_refuses(draft: Any, tmp_path: Path, change: Callable[[Any], None], code: str) -> None:
    drafted = draft("a")
    change(drafted)
    assert codes(drafted.write(tmp_path))[0] == code


@pytest.mark.parametrize("name", ["x.whl", "red_expert_a-0.1.0-cp311-cp311-linux_x86_64.whl"])
def test_the_file_name_must_be_that_of_a_data_package(draft: Any, tmp_path: Path, name) -> None:
    path = draft("a").write(tmp_path)
    assert codes(path.rename(tmp_path / name)) == ["archive_wheel"]


@pytest.mark.parametrize("data", [b"", b"PK", b"no archive", b"PK\x03\x04" + bytes(100)])
def test_refuses_what_is_no_archive(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.whl").write_bytes(data)
    assert codes(tmp_path / "x.whl")[0].startswith("archive_")
    assert codes(tmp_path / "y.whl") == ["package_files"]


def test_the_error_names_the_wheel_and_how_many_more_there_are(draft: Any, tmp_path: Path) -> None:
    drafted = draft("a")
    drafted.members["attack.pth"] = drafted.members["other.txt"] = b""
    with pytest.raises(
        RedhostError, match=r"wheel red_expert_a.* was refused \(\w+, and 1 more: "
    ) as e:
        open_wheel(drafted.write(tmp_path))
    assert "\n" not in str(e.value)


def zipped(*, gap: bool = False) -> bytearray:
    """Return a small archive; with a gap before its second member if wanted."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"one")
        if gap:
            file.write(b"hidden")
            archive.start_dir = file.tell()
        archive.writestr("b", b"two")
    return bytearray(file.getvalue())


def test_a_tight_archive_is_read_and_one_with_a_gap_is_not() -> None:
    assert read_archive(bytes(zipped())) == {"a": b"one", "b": b"two"}
    with zipfile.ZipFile(io.BytesIO(zipped(gap=True))) as archive:
        assert archive.testzip() is None  # others see nothing wrong with it
    with pytest.raises(ArchiveError) as e:
        read_archive(bytes(zipped(gap=True)))
    assert e.value.violations[0].code == "archive_data"


def test_a_file_may_be_as_large_as_its_archive_makes_plausible(monkeypatch) -> None:
    """Weights hardly shrink when they are packed; what grows a thousandfold is a bomb."""
    monkeypatch.setattr("redhost.registry.wheel.archive.MAX_FILE", 1000)
    monkeypatch.setattr("redhost.registry.wheel.archive.MAX_TOTAL", 3000)

    def packed(*contents: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for n, content in enumerate(contents):
                archive.writestr(str(n), content)
        return file.getvalue()

    weights = Random(0).randbytes(1_000_000)
    assert read_archive(packed(weights)) == {"0": weights}
    for bomb in ((bytes(1001),), (bytes(999),) * 4, (weights, bytes(1_100_000))):
        with pytest.raises(ArchiveError) as e:
            read_archive(packed(*bomb))
        assert e.value.violations[0].code == "archive_size"


def test_two_names_for_one_member_are_refused() -> None:
    data = zipped()
    data[30:31] = b"c"  # the name before the content; the directory still says a
    with pytest.raises(ArchiveError) as e:
        read_archive(bytes(data))
    assert e.value.violations[0].code in {"archive_data", "archive_broken"}


def test_a_member_whose_content_changed_is_refused() -> None:
    data = zipped()
    data[31:34] = b"two"  # stored, not packed: only its checksum knows
    with pytest.raises(ArchiveError) as e:
        read_archive(bytes(data))
    assert e.value.violations[0].code == "archive_broken"


def mutant(data: bytes, random: Random) -> bytes:
    """Return the file with a few bytes changed, removed or added, mostly in its directory."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        start = random.choice((0, max(0, len(changed) - 2500)))
        at = random.randrange(start, len(changed))
        match random.randrange(4):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at : at + 4] = random.choice((b"\xff" * 4, bytes(4), b"PK\x05\x06"))
            case 2:
                del changed[at : at + random.randrange(1, 40)]
            case _:
                changed[at:at] = random.randbytes(random.randrange(1, 40))
    return bytes(changed)


def test_a_mutant_is_refused_or_is_the_same_expert(draft: Any, tmp_path: Path) -> None:
    path = draft("a").write(tmp_path)
    intact, random, refused = path.read_bytes(), Random(0), 0
    digest = read_expert(open_wheel(path).files).unwrap("it").digest
    for _ in range(500):
        path.write_bytes(mutant(intact, random))
        found = read_wheel(path)
        refused += found.value is None
        assert not found.value or read_expert(found.value.files).unwrap("it").digest == digest
    assert refused > 400


def test_metadata_of_any_size_are_refused_at_once(draft: Any, tmp_path: Path) -> None:
    drafted = draft("a")
    drafted.members[f"{drafted.info}/METADATA"] += b"a:\n" * 10**7
    started = time.process_time()
    assert read_wheel(drafted.write(tmp_path)).violations[0].code == "package_files"
    assert time.process_time() - started < 2
