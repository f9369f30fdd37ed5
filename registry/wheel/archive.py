"""Read a zip from memory, strictly: nothing in it is hidden or ambiguous.

If two programs read one zip file differently, one may audit other content than the other installs.
So the archive must be tight: each byte belongs to one member, to the directory or to the end
record, and the names before the members are those in the directory.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping

from ..package.checked import Refused, Violation
from ..package.safetensors_check import MAX_FILE
from .policy import MAX_NAMES, is_plain

MAX_TOTAL = 512 * 2**20
"""Bytes that any archive may unpack to (one member: `MAX_FILE`); a large archive may unpack to
`SWELLING` times its size. So the weights of a trunk or an adapter pass, and a zip bomb does not."""

SWELLING = 2

_END = struct.Struct("<4s4H2LH")
_LOCAL = struct.Struct("<4s5H3L2H")
_DESCRIPTOR = struct.Struct("<3L")
_UNICODE_PATH, _UNICODE_COMMENT = 0x7075, 0x6375
_HIDING = {_UNICODE_PATH, _UNICODE_COMMENT}
"""Extra fields with another name or comment, which only some programs read."""

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED, _DESCRIBED, _UTF8 = 0x01, 0x08, 0x800
_GZIP_OR_TAR = re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ\x00")


class ArchiveError(Refused):
    """A fault of an archive.

    Args:
        code: The stable code.
        expected: What would have been correct.
        found: What was found.
    """

    def __init__(self, code: str, expected: str, found: str) -> None:
        hint = "Build the wheel again, or get it again from where it came."
        if code == "archive_sdist":
            hint = "Ask its author for a wheel: a source distribution runs code to be installed."
        super().__init__(Violation(code, "archive", expected, found, hint))


def read_archive(data: bytes) -> Mapping[str, bytes]:
    """Unpack every member into memory.

    Args:
        data: The whole file.

    Returns:
        Content by name; a folder's name ends with a slash.

    Raises:
        ArchiveError: If it is not an archive, or hides or repeats something.
    """
    if _GZIP_OR_TAR.match(data) or data[257:262] == b"ustar":
        raise ArchiveError("archive_sdist", "a wheel", "a source distribution")
    count, directory = _directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) != count:
                raise ArchiveError("archive_data", f"{count:,} members", f"{len(members):,}")
            # Before anything is unpacked.
            total = max(MAX_TOTAL, SWELLING * len(data))
            if len(members) > MAX_NAMES or sum(m.file_size for m in members) > total:
                expected = f"at most {MAX_NAMES:,} files and {total:,} bytes"
                raise ArchiveError("archive_size", expected, "more")
            _check_members(members)
            _check_tight(data, members, directory)
            most = max(MAX_FILE, SWELLING * len(data))
            return {m.filename: _unpack(archive, m, most=most) for m in members}
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        struct.error,
        zlib.error,
    ) as e:
        raise ArchiveError("archive_broken", "a wheel", str(e)[:120] or "another file") from e


def _directory(data: bytes) -> tuple[int, int]:
    """Return the number of members and the directory's offset; check that the file ends with it."""
    end = len(data) - _END.size
    if end < 0 or data[end : end + 4] != b"PK\x05\x06":
        if data[:2] != b"PK":
            raise ArchiveError("archive_broken", "a wheel", "another file")
        raise ArchiveError("archive_data", "the archive's end record at its end", "other bytes")
    _, disk, first, here, count, size, offset, comment = _END.unpack_from(data, end)
    if (disk, first, comment) != (0, 0, 0) or here != count or offset + size != end:
        raise ArchiveError("archive_data", "a directory that ends the file", "bytes beside it")
    return int(count), int(offset)


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    """Refuse names that occur twice or lead out of the archive, and special files."""
    seen: set[str] = set()
    for member in members:
        name = member.orig_filename
        if member.comment or _HIDING & set(_extra_fields(member.extra)):
            raise ArchiveError("archive_data", "one name and no comment", repr(name[:80]))
        if not is_plain(name.removesuffix("/")) or name != member.filename:
            raise ArchiveError("archive_name", "names inside the wheel", repr(name[:80]))
        folded = unicodedata.normalize("NFC", name.removesuffix("/")).casefold()
        if folded in seen:
            raise ArchiveError("archive_duplicate", "every name once", f"{name[:80]!r} twice")
        seen.add(folded)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            what = "a symbolic link" if kind == stat.S_IFLNK else "something else"
            raise ArchiveError("archive_link", "plain files only", f"{name[:80]!r}, {what}")
        if member.flag_bits & _ENCRYPTED or member.compress_type not in _METHODS:
            raise ArchiveError("archive_broken", "stored or deflated files", repr(name[:80]))


def _check_tight(data: bytes, members: list[zipfile.ZipInfo], directory: int) -> None:
    """Refuse bytes before, between or after the members, and headers that contradict each other."""
    at = 0
    for member in sorted(members, key=lambda m: m.header_offset):
        if member.header_offset != at:
            raise ArchiveError("archive_data", "members side by side", f"bytes at {at:,}")
        _, _, flags, method, _, _, *sizes, names, extra = _LOCAL.unpack_from(data, at)
        start = at + _LOCAL.size
        encoding = "utf-8" if member.flag_bits & _UTF8 else "cp437"
        name, end = member.orig_filename.encode(encoding), start + names + extra
        facts, described = (member.CRC, member.compress_size, member.file_size), flags & _DESCRIBED
        agreements = [
            data[start : start + names] == name,
            (flags, method) == (member.flag_bits, member.compress_type),
            tuple(sizes) == facts or (described and not any(sizes)),
            not _HIDING & set(_extra_fields(data[start + names : end])),
        ]
        at = end + member.compress_size
        if described:
            at += 4 if data[at : at + 4] == b"PK\x07\x08" else 0
            agreements += [_DESCRIPTOR.unpack_from(data, at) == facts]
            at += _DESCRIPTOR.size
        if not all(agreements):
            expected = f"{member.filename[:80]!r} before its content as in the directory"
            raise ArchiveError("archive_data", expected, "another header")
    if at != directory:
        expected = "a directory right after the members"
        raise ArchiveError("archive_data", expected, f"bytes at {at:,}")


def _extra_fields(extra: bytes) -> Iterator[int]:
    """Yield the kinds of a header's extra fields; malformed bytes count as a hidden name."""
    while extra:
        kind, size = struct.unpack_from("<HH", extra.ljust(4, b"\xff"))
        yield kind if len(extra) >= 4 + size else _UNICODE_PATH
        extra = extra[4 + size :]


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, most: int) -> bytes:
    """Unpack one member; refuse a large declared size, and stop at a wrong one while unpacking."""
    expected = f"files of at most {most:,} bytes"
    if member.file_size > most:
        raise ArchiveError("archive_size", expected, member.filename[:80])
    with archive.open(member) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ArchiveError("archive_size", expected, member.filename[:80])
    return data
