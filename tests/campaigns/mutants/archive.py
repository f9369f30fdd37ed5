"""Format-aware mutations of a wheel's zip archive, and of its RECORD."""

from __future__ import annotations

import io
import marshal
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from random import Random

from mutants.subject import MODULE, Subject, info_files, pack, record_of

__all__ = ["ARCHIVE", "RECORD", "WheelChange"]

WheelChange = Callable[[Subject, Random], bytes]

CENTRAL, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"

PYC = bytes.fromhex("a70d0d0a01000000") + bytes(8) + marshal.dumps(compile("1/0", "x", "exec"))
"""Byte code that Python runs without comparing it with its source."""


def _with(name: str, data: bytes = b"x") -> WheelChange:
    """Return the change that adds a member."""

    def change(subject: Subject, random: Random) -> bytes:
        return pack(subject.files, info_files(subject.files), more={name: data})

    return change


def _field(
    *, central: tuple[int, str], local: tuple[int, str], values: tuple[int, ...]
) -> WheelChange:
    """Return the change that falsifies one field of a member's two headers."""

    def change(subject: Subject, random: Random) -> bytes:
        data, value = bytearray(subject.wheel), random.choice(values)
        member = random.randrange(data.count(CENTRAL))
        for mark, (offset, kind) in ((CENTRAL, central), (LOCAL, local)):
            place = -1
            for _ in range(member + 1):
                place = data.find(mark, place + 1)
            struct.pack_into(kind, data, place + offset, value)
        return bytes(data)

    return change


def _double(subject: Subject, random: Random) -> bytes:
    """Add a second member of the same name, which only some zip readers use."""
    buffer = io.BytesIO(subject.wheel)
    with zipfile.ZipFile(buffer, "a") as archive:
        name = random.choice(archive.namelist())
        info = zipfile.ZipInfo("placeholder"[: len(name)].ljust(len(name), "_"))
        archive.writestr(info, b"other")
    return buffer.getvalue().replace(info.filename.encode(), name.encode())


def _one_header(subject: Subject, random: Random) -> bytes:
    """Make one of a member's two headers differ from the other."""
    local, central = {8: 10, 14: 16, 18: 20, 22: 24}, random.random() < 0.5
    data, offset = bytearray(subject.wheel), random.choice(sorted(local))
    mark, offset = (CENTRAL, local[offset]) if central else (LOCAL, offset)
    data[data.index(mark) + offset] ^= 1 << random.randrange(8)
    return bytes(data)


def _count(subject: Subject, random: Random) -> bytes:
    """Change the number of members in the end record."""
    data = bytearray(subject.wheel)
    struct.pack_into("<HH", data, data.rindex(END) + 8, *[random.choice((0, 1, 65535))] * 2)
    return bytes(data)


def _rewritten(change: Callable[[zipfile.ZipInfo, Random], None]) -> WheelChange:
    """Return the change that rewrites the archive with one member's header changed."""

    def rewrite(subject: Subject, random: Random) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(subject.wheel)) as old:
            chosen = random.choice(old.namelist())
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
                for member in old.infolist():
                    content = old.read(member)
                    if member.filename == chosen:
                        change(member, random)
                    new.writestr(member, content)
        return buffer.getvalue()

    return rewrite


def _comment(member: zipfile.ZipInfo, random: Random) -> None:
    member.comment = random.randbytes(random.randint(1, 40))


def _second_name(member: zipfile.ZipInfo, random: Random) -> None:
    """Add another name in the Unicode Path field, which some readers prefer."""
    name = random.choice((b"other/expert.json", b"../evil.py", b"evil.pth"))
    field = struct.pack("<BL", 1, zlib.crc32(member.filename.encode())) + name
    member.extra = struct.pack("<HH", 0x7075, len(field)) + field


def _honest(members: Callable[[Random], Mapping[str, bytes]]) -> WheelChange:
    """Return the change that adds members which RECORD lists correctly."""

    def change(subject: Subject, random: Random) -> bytes:
        files = {**subject.files, **members(random)}
        return pack(files, info_files(files))

    return change


def _bomb(subject: Subject, random: Random) -> bytes:
    """Replace the card by a few hundred kilobytes that unpack to 96 MiB."""
    files = {**subject.files, subject.card: bytes(96 * 2**20)}
    return pack(files, info_files(files))


def _without(subject: Subject, random: Random) -> bytes:
    info = info_files(subject.files)
    members = {**subject.files} | {f"info/{n}": d for n, d in info.items()}
    gone = random.choice(sorted(members))
    files = {n: d for n, d in subject.files.items() if n != gone}
    return pack(files, {n: d for n, d in info.items() if f"info/{n}" != gone})


def _points(subject: Subject, random: Random) -> bytes:
    values = ("", "os", "torch", "redhost", "../x", "a.b", "x:y", f"{MODULE}\nb = {MODULE}", "ü")
    info = info_files(subject.files)
    text = f"[redhost.experts]\nmutant = {random.choice(values)}\n"
    return pack(subject.files, {**info, "entry_points.txt": text.encode()})


def _metadata(subject: Subject, random: Random) -> bytes:
    texts = (b"", b"Name: x\n", b"\xff", b"Version: 1\n", b"Name\n\n", b"Name: a\nName: b\n")
    info = info_files(subject.files)
    return pack(subject.files, {**info, "METADATA": random.choice(texts)})


def _other_point(subject: Subject, random: Random) -> bytes:
    """Give the entry point a name other than the expert's id."""
    info = info_files(subject.files)
    points = f"[redhost.experts]\n{random.choice(('other', 'range1', 'Mutant'))} = {MODULE}\n"
    return _repacked(subject, {**info, "entry_points.txt": points.encode()})


def _two_headers(subject: Subject, random: Random) -> bytes:
    """State the name twice in METADATA."""
    info = info_files(subject.files)
    more = random.choice((b"Name: other\n", b"Version: 2\n", b"Name: red-expert-mutant\n"))
    return _repacked(subject, {**info, "METADATA": info["METADATA"] + more})


def _repacked(subject: Subject, info: Mapping[str, bytes]) -> bytes:
    """Return a wheel with this dist-info and a correct RECORD."""
    plain = {name: data for name, data in info.items() if name != "RECORD"}
    return pack(subject.files, {**plain, "RECORD": record_of(subject.files, plain)})


def _changed_member(subject: Subject, random: Random) -> bytes:
    """Change a file without updating RECORD."""
    name = random.choice(sorted(subject.files))
    data = bytearray(subject.files[name])
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return pack({**subject.files, name: bytes(data)}, info_files(subject.files))


ARCHIVE: Mapping[str, WheelChange] = {
    "file changed, RECORD kept": _changed_member,
    "file missing": _without,
    "member twice": _double,
    "name outside": _with("../evil.py"),
    "absolute name": _with("/etc/evil"),
    "back slash": _with("a\\..\\evil.py"),
    "pth file": _with("evil.pth", b"import os\n"),
    "another top level": _with("torch/__init__.py"),
    "code beside": _with(f"{MODULE}/evil.py", b"raise SystemExit\n"),
    "unchecked byte code": _with(f"{MODULE}/__pycache__/__init__.cpython-311.pyc", PYC),
    "folder in the package": _with(f"{MODULE}/sub/expert.json", b"{}"),
    "second dist-info": _with("x-1.dist-info/entry_points.txt", b"[redhost.experts]\na = x\n"),
    "entry points": _points,
    "metadata": _metadata,
    "bomb": _bomb,
    "folders too deep": _honest(
        lambda random: {random.choice((10, 100, 1_100)) * "d/" + "x": b"x"}
    ),
    "path too long": _honest(lambda random: {random.choice((241, 4_000)) * "d": b"x"}),
    "too many files": _honest(lambda random: {f"{n}": b"" for n in range(10_000)}),
    "comment on a member": _rewritten(_comment),
    "second name": _rewritten(_second_name),
    "headers that disagree": _one_header,
    "number of members": _count,
    "entry point of another name": _other_point,
    "header twice": _two_headers,
    "size": _field(central=(24, "<I"), local=(22, "<I"), values=(0, 1, 2**31, 2**32 - 1)),
    "packed size": _field(central=(20, "<I"), local=(18, "<I"), values=(0, 1, 2**31, 2**32 - 1)),
    "checksum": _field(central=(16, "<I"), local=(14, "<I"), values=(0, 1, 2**32 - 1)),
    "method": _field(central=(10, "<H"), local=(8, "<H"), values=(0, 1, 9, 12, 14, 93, 99, 65535)),
    "flags": _field(central=(8, "<H"), local=(6, "<H"), values=(1, 8, 0x20, 0x40, 0x800, 0xFFFF)),
    "name length": _field(central=(28, "<H"), local=(26, "<H"), values=(0, 1, 65535)),
    "extra length": _field(central=(30, "<H"), local=(28, "<H"), values=(1, 4, 65535)),
}
"""Name → a change to the wheel."""


def _record(edit: Callable[[list[bytes], Random], object]) -> WheelChange:
    """Return the change that edits RECORD's rows; the archive itself stays valid."""

    def change(subject: Subject, random: Random) -> bytes:
        info = info_files(subject.files)
        rows = info["RECORD"].splitlines()
        edit(rows, random)
        return pack(subject.files, {**info, "RECORD": b"".join(row + b"\n" for row in rows)})

    return change


OUTSIDE = (b"../../etc/passwd,,", b"/dev/zero,sha256=x,1", b"..\\x,,", b'"a\nb",,', b"\xff,,")

RECORD: Mapping[str, WheelChange] = {
    "row missing": _record(lambda rows, random: rows.pop(random.randrange(len(rows)))),
    "row twice": _record(lambda rows, random: rows.append(random.choice(rows))),
    "row outside": _record(lambda rows, random: rows.append(random.choice(OUTSIDE))),
    "hash changed": _record(
        lambda rows, random: rows.__setitem__(0, rows[0].replace(b"sha256=", b"sha256=x"))
    ),
    "hash of another kind": _record(
        lambda rows, random: rows.__setitem__(0, rows[0].replace(b"sha256=", b"md5="))
    ),
    "size changed": _record(lambda rows, random: rows.__setitem__(0, rows[0] + b"0")),
    "too many rows": _record(
        lambda rows, random: rows.extend(b"%s/%d,," % (MODULE.encode(), n) for n in range(40_000))
    ),
    "empty": _record(lambda rows, random: rows.clear()),
    "noise": _record(lambda rows, random: rows.append(random.randbytes(200))),
}
"""Name → a change to RECORD."""
