"""Packages damaged in any field of any file, drawn by Hypothesis and written as pip would."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

MARK = "a value that is replaced"
FIELDS = {
    "digits": "1" * 5000,
    "digits as text": f'"{"1" * 5000}"',
    "a long range": f'">=1.{"9" * 5000}"',
    "many ranges": f'"{",".join([">=1"] * 100_000)}"',
    "an odd range": '"~=1.0.*"',
    "equal to anything": '"===1.0"',
    "NUL": '"a\\u0000b"',
    "half a pair": '"\\ud800"',
    "terminal codes": '"\\u001b[2J\\u202e"',
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "a long list": f"[{','.join(['1'] * 200_000)}]",
    "a long text": f'"{"x" * 1_000_000}"',
    "a huge float": "1e999",
    "a tiny float": "1e-320",
    "a large integer": "9223372036854775807",
    "minus one": "-1",
    "zero": "0",
    "NaN": "NaN",
    "true": "true",
    "null": "null",
    "nothing": '""',
    "an object": "{}",
    "a list": "[]",
    "a path": '"../../../etc/passwd"',
    "a pattern": '"(a+)+$"',
    "a star": '"(.*)*x"',
    "dots": f'"{"." * 140}"',
    "many patterns": json.dumps([f"{'.' * 100}{n}" for n in range(1000)]),
    "many ranks": json.dumps({f"{'.' * 100}{n}": 4 for n in range(1000)}),
    "twice": '{"a": 1, "a": 2}',
    "wide digits": '"１２３"',
}
"""Values of any field of any JSON."""

LINES = {
    "nothing": "",
    "a name": "Name: red-expert-good0",
    "a long name": f"Name: {'n' * 100_000}",
    "a version": f"Version: {'9' * 5000}",
    "codes": "Summary: \x1b[2J\x00\u202e",
    "no colon": "x" * 300,
    "a section": "[console_scripts]",
    "no end": "[redhost.experts",
    "a module": "x = " + "m" * 300,
    "a dotted module": "x = a.b:c",
    "many": "\n".join(f"x{n} = m{n}" for n in range(20_000)),
    "many headers": "Name: a\n" * 50_000,
    "a row": "red_expert_x/\x01,sha256=,1" + "0" * 5000,
    "a quote": '"',
    "a row above": "../../x,sha256=" + "A" * 43 + ",1",
    "a field": "y" * 200_000,
    "many rows": "\n".join(f"red_expert_x/{n},," for n in range(50_000)),
    "odd": "\x85\u2028\r\x0b",
    "object": '{"text": "a", "label": 1e999}',
}
"""Lines of any text."""

BYTES: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "zeros": lambda _: bytes(5000),
    "brackets": lambda _: b"[" * 300_000,
    "megabytes": lambda _: b"a = b\n" * 1_000_000,
    "not text": lambda _: b"\xff\xfe\x80" * 100,
    "wide": lambda data: data.decode("latin-1").encode("utf-16"),
    "marked": lambda data: b"\xef\xbb\xbf" + data,
    "half": lambda data: data[: len(data) // 2],
    "doubled": lambda data: data * 2,
    "a large header": lambda data: b"\xff" * 8 + data[8:],
}

PLACES = ("fifo", "folder", "loop", "device", "gone")
"""What may lie where a file should."""

NAMES = (b"\xff\xfe.bin", b"n" * 250, b"a\nb", b"a,b", b"deep/" * 60 + b"x", b"__pycache__/x.pyc")
"""Files that a package brings besides."""

INFO = ("METADATA", "entry_points.txt", "RECORD", "direct_url.json", "top_level.txt", "WHEEL")

KINDS = ("field", "key", "line", "bytes", "place", "name", "folder")

Edit = tuple[str, int, int, int]
"""A kind of damage, and numbers that select the file, the place in it and the value."""

NUMBERS = st.integers(0, 9999)
DAMAGES = st.tuples(
    st.integers(0, 3),  # the package
    st.lists(st.tuples(st.sampled_from(KINDS), NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=3),
    st.booleans(),  # whether its manifest has the digests of what is damaged
    st.booleans(),  # whether its RECORD has
)


@dataclass
class Damaged:
    """A package that is damaged edit by edit, then written.

    Attributes:
        site: The folder that it is installed in.
        dist: Its distribution.
        files: Its files and those of its dist-info, by path relative to the site.
        manifest: The path of its manifest.
    """

    site: Path
    dist: str
    files: dict[str, bytes]
    manifest: str

    @property
    def module(self) -> str:
        return self.dist.replace("-", "_")

    def write(self, edits: list[Edit], *, honest: bool, sealed: bool) -> None:
        """Damage it and write it."""
        contents = [e for e in edits if e[0] in {"field", "key", "line", "bytes"}]
        for edit in contents:
            if self._file(edit[1]) != self.manifest:
                self._change(edit)
        if honest:
            self._agree()
        for edit in contents:
            if self._file(edit[1]) == self.manifest:
                self._change(edit)
        if sealed:
            record = f"{self.module}-1.dist-info/RECORD"
            self.files[record] = b"".join(
                f"{name},sha256={_urlsafe(data)},{len(data)}\n".encode()
                for name, data in sorted(self.files.items())
                if name != record
            )
            self.files[record] += f"{record},,\n".encode()
        for name, data in self.files.items():
            path = self.site / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        for edit in edits:
            self._place(edit)

    def remove(self) -> None:
        """Remove what was written."""
        for path in self.site.iterdir():
            if not path.name.startswith(("red_expert_good", "red_backbone_good")):
                shutil.rmtree(os.fsencode(path))

    def _file(self, number: int) -> str:
        return sorted(self.files)[number % len(self.files)]

    def _change(self, edit: Edit) -> None:
        kind, file, place, value = edit
        name = self._file(file)
        data = self.files[name]
        if kind == "line":
            lines = data.split(b"\n")
            line = [*LINES.values()][value % len(LINES)].encode()
            lines[place % len(lines) :][:1] = [line]
            lines.insert(place % len(lines), line)
            data = b"\n".join(lines)
        elif kind == "bytes" or not name.endswith(("json", "safetensors")):
            data = [*BYTES.values()][value % len(BYTES)](data)
        else:
            text = [*FIELDS.values()][value % len(FIELDS)].encode()
            data = _with_field(data, name, place, text, key=kind == "key")
        self.files[name] = data

    def _agree(self) -> None:
        """Put the digests of the files into the manifest."""
        manifest = json.loads(self.files[self.manifest])
        for part in _nodes(manifest):
            if isinstance(part, dict) and "file" in part and "sha256" in part:
                data = self.files[f"{self.module}/{part['file']}"]
                part["sha256"] = hashlib.sha256(data).hexdigest()
        self.files[self.manifest] = json.dumps(manifest).encode()

    def _place(self, edit: Edit) -> None:
        """Put something else where a file or a folder was."""
        kind, file, place, value = edit
        path = self.site / self._file(file)
        if kind == "place" and path.is_file():
            path.unlink()
            what = PLACES[value % len(PLACES)]
            if what == "fifo":
                os.mkfifo(path)
            elif what == "folder":
                path.mkdir()
            elif what != "gone":
                path.symlink_to(path.name if what == "loop" else "/dev/zero")
        elif kind == "name":
            other = path.parent / os.fsdecode(NAMES[value % len(NAMES)])
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_bytes(b"x")
        elif kind == "folder" and (info := self.site / f"{self.module}-1.dist-info").is_dir():
            names = ("red_expert_a-b-c-1", "-1", "1", "red_expert_é-1", f"{'n' * 200}-1", ".-.")
            if not (other := self.site / f"{names[place % len(names)]}.dist-info").exists():
                info.rename(other)


def _urlsafe(data: bytes) -> str:
    import base64

    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _with_field(data: bytes, name: str, place: int, text: bytes, *, key: bool) -> bytes:
    """Replace one value, or one key, of a JSON, or of the header of a safetensors file."""
    head, rest = b"", b""
    try:
        if name.endswith("safetensors"):
            size = int.from_bytes(data[:8], "little")
            head, data, rest = data[:8], data[8 : 8 + size], data[8 + size :]
        whole = [json.loads(data)]
    except (ValueError, RecursionError):
        return head + text + rest  # damaged already
    places = [(p, k) for p in _nodes(whole) for k in (p if isinstance(p, dict) else range(len(p)))]
    parent, at = places[place % len(places)]
    if key and isinstance(parent, dict):
        parent[MARK] = parent.pop(at)
        text = text if text.startswith(b'"') else json.dumps(text.decode()).encode()
    else:
        parent[at] = MARK
    made = json.dumps(whole[0]).encode().replace(json.dumps(MARK).encode(), text)
    return (len(made).to_bytes(8, "little") if head else b"") + made + rest


def _nodes(value: Any) -> Iterator[Any]:
    """Yield every object and list of a JSON."""
    if isinstance(value, dict | list):
        yield value
        for one in list(value.values()) if isinstance(value, dict) else value:
            yield from _nodes(one)
