"""Format-unaware mutations of bytes, like those of a bad disk, a bad line or a fuzzer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

__all__ = ["BLIND", "Change"]

Change = Callable[[bytes, Random], bytes]


def _flip_bit(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return _put(data, place, bytes([data[place] ^ (1 << random.randrange(8))]))


def _flip_bytes(data: bytes, random: Random) -> bytes:
    for _ in range(random.randint(2, 16)):
        data = _put(data, random.randrange(len(data)), random.randbytes(1))
    return data


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def _cut_few(data: bytes, random: Random) -> bytes:
    return data[: -random.randint(1, min(8, len(data)))]


def _behead(data: bytes, random: Random) -> bytes:
    return data[random.randint(1, min(64, len(data))) :]


def _insert(data: bytes, random: Random) -> bytes:
    place = random.randint(0, len(data))
    return data[:place] + random.randbytes(random.randint(1, 64)) + data[place:]


def _append(data: bytes, random: Random) -> bytes:
    return data + random.randbytes(random.randint(1, 64))


def _delete(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + data[place + random.randint(1, 64) :]


def _repeat(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    piece = data[start : start + random.randint(1, 256)]
    return data[:start] + piece + data[start:]


def _swap(data: bytes, random: Random) -> bytes:
    a, b = sorted(random.sample(range(len(data) + 1), 2))
    middle = (a + b) // 2
    return data[:a] + data[middle:b] + data[a:middle] + data[b:]


def _zero(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return _put(data, place, bytes(min(random.randint(1, 512), len(data) - place)))


def _noise(data: bytes, random: Random) -> bytes:
    return random.randbytes(len(data))


def _put(data: bytes, place: int, piece: bytes) -> bytes:
    return data[:place] + piece + data[place + len(piece) :]


BLIND: Mapping[str, Change] = {
    "bit flipped": _flip_bit,
    "bytes overwritten": _flip_bytes,
    "truncated": _truncate,
    "last bytes missing": _cut_few,
    "first bytes missing": _behead,
    "bytes inserted": _insert,
    "bytes appended": _append,
    "bytes removed": _delete,
    "piece repeated": _repeat,
    "pieces swapped": _swap,
    "zeros": _zero,
    "noise": _noise,
    "empty": lambda data, random: b"",
}
"""Name → a change to bytes, which are never empty."""
