"""Format-aware mutations of safetensors files: of the header, and of the numbers after it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from mutants.scramble import Change

__all__ = ["HEADER", "NUMBERS", "assemble", "header_of"]

Header = dict[str, Any]


def header_of(data: bytes) -> tuple[Header, bytes]:
    """Return the decoded header and the bytes after it."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def assemble(text: bytes, body: bytes, *, size: int | None = None) -> bytes:
    """Return a file with this header and this stated size of the header."""
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def _edited(edit: Callable[[Header, Random], object]) -> Change:
    """Return the change that edits the decoded header."""

    def change(data: bytes, random: Random) -> bytes:
        header, body = header_of(data)
        edit(header, random)
        return assemble(json.dumps(header).encode(), body)

    return change


def _rewritten(write: Callable[[bytes, Random], bytes]) -> Change:
    """Return the change that edits the header's text."""

    def change(data: bytes, random: Random) -> bytes:
        size = int.from_bytes(data[:8], "little")
        return assemble(write(data[8 : 8 + size], random), data[8 + size :])

    return change


def _sized(size: Callable[[int, Random], int]) -> Change:
    """Return the change that falsifies the header's size."""

    def change(data: bytes, random: Random) -> bytes:
        length = size(int.from_bytes(data[:8], "little"), random) % 2**64
        return length.to_bytes(8, "little") + data[8:]

    return change


def _one(header: Header, random: Random) -> Header:
    """Return the entry of one tensor."""
    found: Header = header[random.choice(sorted(header.keys() - {"__metadata__"}))]
    return found


def _rename(header: Header, random: Random) -> None:
    name = random.choice(sorted(header))
    names = ("../x", "x" * 201, "x\n", "", "ü", "\0", "a/b", "\ud800", "__class__")
    header[random.choice(names)] = header.pop(name)


def _shift(header: Header, random: Random) -> None:
    offsets = _one(header, random)["data_offsets"]
    offsets[random.randrange(2)] += random.choice((-(2**63), -8, -1, 1, 8, 2**31, 2**63))


def _swap_places(header: Header, random: Random) -> None:
    a, b = _one(header, random), _one(header, random)
    a["data_offsets"], b["data_offsets"] = b["data_offsets"], a["data_offsets"]


def _shape(header: Header, random: Random) -> None:
    shapes: tuple[Any, ...] = (
        [],
        [0],
        [-1],
        [2**62, 4],
        [1.5],
        [True],
        ["4"],
        None,
        [1] * 9,
        {},
        [[4]],
    )
    _one(header, random)["shape"] = random.choice(shapes)


def _transpose(header: Header, random: Random) -> None:
    _one(header, random)["shape"].reverse()


def _double_name(text: bytes, random: Random) -> bytes:
    header = json.loads(text)
    name = random.choice(sorted(header))
    return text.rstrip()[:-1] + b',"%s":%s}' % (name.encode(), json.dumps(header[name]).encode())


def _double_key(text: bytes, random: Random) -> bytes:
    return text.replace(b'"dtype"', b'"dtype":"F32","dtype"', 1)


def _many(text: bytes, random: Random) -> bytes:
    empty = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    count = random.choice((4097, 15_000))
    return b"{" + b",".join(empty % n for n in range(count)) + b"}"


HEADER: Mapping[str, Change] = {
    "size of the header + 1": _sized(lambda n, random: n + 1),
    "size of the header - 1": _sized(lambda n, random: n - 1),
    "size of the header huge": _sized(lambda n, random: random.choice((2**20 + 1, 2**63, -1))),
    "size of the header 0": _sized(lambda n, random: 0),
    "white space first": _rewritten(lambda text, random: b" " + text),
    "byte order mark": _rewritten(lambda text, random: b"\xef\xbb\xbf" + text),
    "white space last": _rewritten(lambda text, random: text + b" " * random.randint(1, 64)),
    "zeros last": _rewritten(lambda text, random: text + bytes(8)),
    "a list": _rewritten(lambda text, random: b"[" + text + b"]"),
    "deep": _rewritten(lambda text, random: b'{"a":' * random.choice((50, 5000, 200_000))),
    "name twice": _rewritten(_double_name),
    "key twice inside": _rewritten(_double_key),
    "many empty tensors": _rewritten(_many),
    "long number": _rewritten(lambda text, random: b'{"a":' + b"9" * 500_000 + b"}"),
    "NaN and Infinity": _rewritten(lambda text, random: text.replace(b"[0,", b"[NaN,", 1)),
    "name": _edited(_rename),
    "offsets moved": _edited(_shift),
    "tensors trade places": _edited(_swap_places),
    "shape": _edited(_shape),
    "shape reversed": _edited(_transpose),
    "dtype": _edited(
        lambda header, random: _one(header, random).update(
            dtype=random.choice(("F64", "BF16", "I64", "BOOL", "F8_E4M3", "f32", "", 4, None))
        )
    ),
    "key missing": _edited(lambda header, random: _one(header, random).popitem()),
    "key more": _edited(lambda header, random: _one(header, random).update(pickle="cos\n")),
    "tensor missing": _edited(lambda header, random: header.pop(random.choice(sorted(header)))),
    "tensor more": _edited(
        lambda header, random: header.update(
            extra={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        )
    ),
    "metadata": _edited(
        lambda header, random: header.update(
            __metadata__=random.choice(({"a": 1}, [], "x", {"a": {"b": "c"}}, {"a": "b"}))
        )
    ),
}
"""Name → a change to the header; the numbers are kept."""


def _planted(*values: float) -> Change:
    """Return the change that writes one of these numbers at a random place."""

    def change(data: bytes, random: Random) -> bytes:
        start = 8 + int.from_bytes(data[:8], "little")
        place = start + 4 * random.randrange((len(data) - start) // 4)
        return data[:place] + struct.pack("<f", random.choice(values)) + data[place + 4 :]

    return change


def _body(change: Callable[[bytes, Random], bytes]) -> Change:
    def whole(data: bytes, random: Random) -> bytes:
        start = 8 + int.from_bytes(data[:8], "little")
        return data[:start] + change(data[start:], random)

    return whole


def _shuffled(body: bytes, random: Random) -> bytes:
    rows = [body[i : i + 64] for i in range(0, len(body), 64)]
    random.shuffle(rows)
    return b"".join(rows)


def _huge(data: bytes, random: Random) -> bytes:
    """Fill one tensor of floats with a finite number whose square is not finite."""
    header, body = header_of(data)
    floats = sorted(name for name, entry in header.items() if entry.get("dtype") == "F32")
    start, end = map(int, header[random.choice(floats)]["data_offsets"])
    filled = struct.pack("<f", random.choice((1e30, -1e37))) * ((end - start) // 4)
    return data[: len(data) - len(body)] + body[:start] + filled + body[end:]


NUMBERS: Mapping[str, Change] = {
    "NaN": _planted(float("nan")),
    "infinity": _planted(float("inf"), float("-inf")),
    "huge number": _planted(3e38, -3e38),
    "another number": _planted(1.0, -7.5, 1e-30),
    "all huge": _huge,
    "all zero": _body(lambda body, random: bytes(len(body))),
    "all ones": _body(lambda body, random: b"\xff" * len(body)),
    "numbers shuffled": _body(_shuffled),
    "sign flipped": _body(lambda body, random: bytes(b ^ 0x80 for b in body)),
    "a number missing": _body(lambda body, random: body[:-4]),
    "a number more": _body(lambda body, random: body + bytes(4)),
}
"""Name → a change to the numbers; the header is kept."""
