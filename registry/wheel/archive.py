"""A zip that is nothing but its members: read from memory, nothing hidden, nothing ambiguous.

Two programs that read one zip file differently are an attack: what one audits the other installs.
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
from collections.abc import Mapping

from ..package.checked import Violation
from ..package.safetensors_check import MAX_FILE
from .policy import is_plain

MAX_MEMBERS = 10_000
MAX_TOTAL = 512 * 2**20

_END = struct.Struct("<4s4H2LH")
_LOCAL = struct.Struct("<4s5H3L2H")
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED, _DESCRIBED, _UTF8 = 0x01, 0x08, 0x800
_GZIP_OR_TAR = re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ\x00")


class ArchiveError(Exception):
    """What is wrong with an archive; becomes a violation at the boundary.

    Args:
        code: The stable code.
        expected: What would have been right.
        found: What is there.
    """

    def __init__(self, code: str, expected: str, found: str) -> None:
        super().__init__(expected)
        self.code, self.expected, self.found = code, expected, found

    def violation(self, name: str) -> Violation:
        """Return it as a value, of the archive of this name."""
        hint = "Build the wheel again, or get it again from where it came."
        if self.code == "archive_sdist":
            hint = "Ask its author for a wheel: a source distribution runs code to be installed."
        return Violation(self.code, name, self.expected, self.found, hint)


def read_archive(data: bytes) -> Mapping[str, bytes]:
    """Unpack every member into memory.

    Args:
        data: The whole file.

    Returns:
        Content by name; a folder's name ends with a slash.

    Raises:
        ArchiveError: If it is no archive, or one that hides or repeats something.
    """
    if _GZIP_OR_TAR.match(data) or data[257:262] == b"ustar":
        raise ArchiveError("archive_sdist", "a wheel", "a source distribution")
    directory = _directory_offset(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            # Before anything is unpacked.
            if len(members) > MAX_MEMBERS or sum(m.file_size for m in members) > MAX_TOTAL:
                expected = f"at most {MAX_MEMBERS:,} files and {MAX_TOTAL:,} bytes"
                raise ArchiveError("archive_size", expected, "more")
            _check_members(members)
            _check_tight(data, members, directory)
            return {member.filename: _unpack(archive, member) for member in members}
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


def _directory_offset(data: bytes) -> int:
    """Return where the directory begins; it and the end record must close the file."""
    end = len(data) - _END.size
    if end < 0 or data[end : end + 4] != b"PK\x05\x06":
        if data[:2] != b"PK":
            raise ArchiveError("archive_broken", "a wheel", "another file")
        raise ArchiveError("archive_data", "the archive's end record at its end", "other bytes")
    _, disk, first, here, count, size, offset, comment = _END.unpack_from(data, end)
    if (disk, first, comment) != (0, 0, 0) or here != count or offset + size != end:
        raise ArchiveError("archive_data", "a directory that ends the file", "bytes beside it")
    return int(offset)


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    """Refuse names that lead out of the archive or stand twice, and what is no plain file."""
    seen: set[str] = set()
    for member in members:
        name = member.orig_filename
        if not is_plain(name.removesuffix("/")) or name != member.filename:
            raise ArchiveError("archive_name", "names inside the wheel", repr(name[:80]))
        same = unicodedata.normalize("NFC", name.removesuffix("/")).casefold()
        if same in seen:
            raise ArchiveError("archive_duplicate", "every name once", f"{name[:80]!r} twice")
        seen.add(same)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            what = "a symbolic link" if kind == stat.S_IFLNK else "something else"
            raise ArchiveError("archive_link", "plain files only", f"{name[:80]!r}, {what}")
        if member.flag_bits & _ENCRYPTED or member.compress_type not in _METHODS:
            raise ArchiveError("archive_broken", "stored or deflated files", repr(name[:80]))


def _check_tight(data: bytes, members: list[zipfile.ZipInfo], directory: int) -> None:
    """Refuse bytes before, between or after the members, and a second name for one of them."""
    at = 0
    for member in sorted(members, key=lambda m: m.header_offset):
        if member.header_offset != at:
            raise ArchiveError("archive_data", "members side by side", f"bytes at {at:,}")
        fields = _LOCAL.unpack_from(data, at)
        names, extra = fields[9], fields[10]
        start = at + _LOCAL.size
        encoding = "utf-8" if member.flag_bits & _UTF8 else "cp437"
        if data[start : start + names] != member.orig_filename.encode(encoding):
            expected = f"{member.filename[:80]!r} before its content"
            raise ArchiveError("archive_data", expected, "another name")
        at = start + names + extra + member.compress_size
        if member.flag_bits & _DESCRIBED:
            at += 16 if data[at : at + 4] == b"PK\x07\x08" else 12
    if at != directory:
        expected = "a directory right after the members"
        raise ArchiveError("archive_data", expected, f"bytes at {at:,}")


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Unpack one member; a large one is refused by its size, and a size that lies by unpacking."""
    expected = f"files of at most {MAX_FILE:,} bytes"
    if member.file_size > MAX_FILE:
        raise ArchiveError("archive_size", expected, member.filename[:80])
    with archive.open(member) as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ArchiveError("archive_size", expected, member.filename[:80])
    return data
