"""Time and memory of the most expensive files known to the authors, at full size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from mutants.generate import Mutant
from mutants.judge import SECONDS, Result, judge_all
from mutants.subject import WIDTH, Subject, seal
from mutants.tensors import assemble

__all__ = ["HEADER_SECONDS", "RUNS", "measure_limits"]

HEADER_SECONDS = 0.05
"""Limit for a bad header."""

RUNS = 5
"""Each file is checked this often and the fastest run counts, since the machine may be busy."""

MIB = 2**20
FULL = 64 * MIB
LARGE_RANK = FULL // (8 * WIDTH) - 16
"""R for which U and V fill a file of 64 MiB."""

HEADERS: Mapping[str, Callable[[], bytes]] = {
    "header of 130,000 empty objects": lambda: b"{" + b'"a":{},' * (MIB // 8),
    "header of 87,000 keys": lambda: (
        b"{" + b",".join(b'"%06d":1' % i for i in range(MIB // 12)) + b"}"
    ),
    "header nested half a million deep": lambda: b'{"a":' + b"[" * (MIB - 10),
    "header of one long list": lambda: b'{"a":[' + b"1," * (MIB // 2 - 10) + b"1]}",
    "header of one long number": lambda: b'{"a":' + b"9" * (MIB - 10) + b"}",
    "header of one long name": lambda: b'{"' + b"a" * (MIB - 10) + b'":1}',
    "header of 4,097 tensors": lambda: (
        b"{"
        + b",".join(
            b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(4097)
        )
        + b"}"
    ),
}


def _weights(body: bytes, shape: list[int]) -> bytes:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, len(body)]}
    return assemble(json.dumps({"U": entry}).encode(), body)


def _vectors(rows: int, width: int, fill: Callable[[int], bytes]) -> bytes:
    size = 4 * rows * width
    entries = {
        name: {"dtype": "F32", "shape": [rows, width], "data_offsets": [n * size, (n + 1) * size]}
        for n, name in enumerate(("z", "delta"))
    }
    return assemble(json.dumps(entries).encode(), fill(2 * size))


FILES: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "weights of 64 MiB, another shape": (
        "expert.safetensors",
        lambda: _weights(bytes(FULL - 4096), [FULL // 4 - 1024]),
    ),
    "weights of 64 MiB of noise": ("expert.safetensors", lambda: os.urandom(FULL)),
    "weights one byte too large": ("expert.safetensors", lambda: bytes(FULL + 1)),
    "canary of 64 MiB": (
        "canary.safetensors",
        lambda: _vectors((FULL - 4096) // 256, 32, bytes),
    ),
    "card of 64 MiB of line ends": ("card.jsonl", lambda: b"\n" * FULL),
    "card of 64 MiB of short lines": ("card.jsonl", lambda: b"11\n" * (FULL // 3)),
    "card of one line of 64 MiB": ("card.jsonl", lambda: b'{"text":"' + b"x" * (FULL - 9)),
    "manifest of 4 MiB of lists": (
        "expert.json",
        lambda: b'{"labels":[' + b"[]," * ((4 * MIB - 20) // 3) + b"[]]}",
    ),
    "manifest of 4 MiB of keys": (
        "expert.json",
        lambda: b"{" + b",".join(b'"%x":1' % i for i in range(350_000)) + b"}",
    ),
    "manifest of 4 MiB of labels": (
        "expert.json",
        lambda: b'{"labels":[' + b'"ab",' * ((4 * MIB - 20) // 5) + b'"ab"]}',
    ),
    "manifest of 4 MiB of text": (
        "expert.json",
        lambda: b'{"license":"' + b"x" * (4 * MIB - 20) + b'"}',
    ),
}


def _sound(last: bytes) -> bytes:
    """Return valid weights of 64 MiB with these last four bytes."""
    size = 4 * LARGE_RANK * WIDTH
    entries = {
        "U": {"dtype": "F32", "shape": [LARGE_RANK, WIDTH], "data_offsets": [0, size]},
        "V": {"dtype": "F32", "shape": [WIDTH, LARGE_RANK], "data_offsets": [size, 2 * size]},
    }
    return assemble(json.dumps(entries).encode(), bytes(2 * size - 4) + last)


def measure_limits() -> Iterator[tuple[Result, float]]:
    """Check each file several times; yield its result, and its limit in seconds.

    The seconds are those of the fastest run, the memory is the largest of all runs.
    """
    for mutant, limit in _mutants(Subject.make("texts")):
        results = list(judge_all([mutant] * RUNS))
        worst = max(results, key=lambda one: (one.bad, one.memory or 0))
        yield replace(worst, seconds=min(one.seconds for one in results)), limit


def _mutants(subject: Subject) -> Iterable[tuple[Mutant, float]]:
    for kind, text in HEADERS.items():
        files = {**subject.files, "expert.safetensors": assemble(text(), b"")}
        yield Mutant(0, "header", kind, seal(files), subject.digest), HEADER_SECONDS
    for kind, (name, data) in FILES.items():
        files = {**subject.files, name: data()}
        files = files if name == "expert.json" else seal(files)
        yield Mutant(0, "large file", kind, files, subject.digest), SECONDS
    manifest = {**json.loads(subject.files["expert.json"]), "rank": LARGE_RANK}
    large = {**subject.files, "expert.json": json.dumps(manifest).encode()}
    for kind, last in (("the last number NaN", b"\0\0\xc0\x7f"), ("sound, all zeros", bytes(4))):
        files = seal({**large, "expert.safetensors": _sound(last)})
        yield Mutant(0, "large file", f"weights of 64 MiB, {kind}", files, subject.digest), SECONDS
