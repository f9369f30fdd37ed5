"""Wheels that are written member by member, right or wrong."""

from __future__ import annotations

import base64
import hashlib
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Draft", "record_row"]


@dataclass
class Draft:
    """A wheel to be written: its members, and what RECORD says of them, by default the truth."""

    dist: str
    members: dict[str, bytes]
    version: str = "0.1.0"
    listed: dict[str, bytes] = field(default_factory=dict)
    rows: str = ""
    record: bytes | None = None
    twice: tuple[tuple[str, bytes], ...] = ()
    links: frozenset[str] = frozenset()

    @property
    def module(self) -> str:
        return self.dist.replace("-", "_")

    @property
    def info(self) -> str:
        return f"{self.module}-{self.version}.dist-info"

    def honest_record(self) -> bytes:
        """Return a RECORD of the members, as `listed` has them where it does, and of `rows`."""
        rows = [record_row(n, self.listed.get(n, data)) for n, data in self.members.items()]
        return ("".join(f"{r}\n" for r in rows) + f"{self.info}/RECORD,,\n" + self.rows).encode()

    def write(self, folder: Path) -> Path:
        """Write the wheel."""
        record = self.honest_record() if self.record is None else self.record
        path = folder / f"{self.module}-{self.version}-py3-none-any.whl"
        with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
            warnings.simplefilter("ignore")  # of a name that stands twice: it is meant to
            for name, data in [*self.members.items(), *self.twice]:
                member = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
                member.external_attr = (0o120777 if name in self.links else 0o100644) << 16
                archive.writestr(member, data, zipfile.ZIP_DEFLATED)
            if record:
                archive.writestr(f"{self.info}/RECORD", record)
        return path


def record_row(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"
