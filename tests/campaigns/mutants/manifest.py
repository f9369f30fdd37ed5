"""Mutations of ``expert.json`` that are aware of JSON and of the schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from mutants.scramble import Change

__all__ = ["MANIFEST"]

Node = dict[str, Any]

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    2**200,
    0.5,
    "",
    "x\n",
    "\x1b[31mred",
    "\ud800",
    "../../etc/passwd",
    "/dev/zero",
    "$(reboot)",
    [],
    {},
    ["a"] * 50,
    {"trust_remote_code": True},
    "x" * 100_000,
)
RAW = ("NaN", "Infinity", "-Infinity", "1e999", "-0", "1E400", "0x1", "'x'", "nul", "9" * 5000)


def _objects(manifest: Node) -> list[Node]:
    return [manifest, *(value for value in manifest.values() if isinstance(value, dict))]


def _somewhere(manifest: Node, random: Random) -> tuple[Node, str]:
    """Return a non-empty object of the manifest, and one of its keys."""
    node = random.choice([x for x in _objects(manifest) if x])
    return node, random.choice(sorted(node))


def _edited(edit: Callable[[Node, Random], object]) -> Change:
    def change(data: bytes, random: Random) -> bytes:
        manifest = json.loads(data)
        edit(manifest, random)
        return json.dumps(manifest).encode()

    return change


def _drop(manifest: Node, random: Random) -> None:
    node, key = _somewhere(manifest, random)
    del node[key]


def _add(manifest: Node, random: Random) -> None:
    keys = ("trust_remote_code", "__class__", "weights_only", "Schema", "", "rnak")
    random.choice(_objects(manifest))[random.choice(keys)] = random.choice(VALUES)


def _replace(manifest: Node, random: Random) -> None:
    node, key = _somewhere(manifest, random)
    node[key] = random.choice(VALUES)


def _raw(data: bytes, random: Random) -> bytes:
    """Replace a value by a literal that is not valid JSON, or a number out of range."""
    manifest = json.loads(data)
    node, key = _somewhere(manifest, random)
    node[key] = "@@@"
    return json.dumps(manifest).replace('"@@@"', random.choice(RAW)).encode()


def _twice(data: bytes, random: Random) -> bytes:
    manifest = json.loads(data)
    node, key = _somewhere(manifest, random)
    pair = f"{json.dumps(key)}: {json.dumps(node[key])}"
    return json.dumps(manifest).replace(pair, f"{pair}, {pair}", 1).encode()


def _file(manifest: Node, random: Random) -> None:
    names = ("expert.json", "../x", "/dev/zero", "CON", "x.pkl", ".hidden", "a/b", "canary.SAFE")
    manifest[random.choice(("weights", "card", "canary"))]["file"] = random.choice(names)


def _other_file(manifest: Node, random: Random) -> None:
    a, b = random.sample(("weights", "card", "canary"), 2)
    for key in ("file", "sha256"):
        manifest[a][key] = manifest[b][key]


def _contract(manifest: Node, random: Random) -> None:
    """Declare something that the files contradict; each value alone would be allowed."""
    path, value = random.choice(
        (
            ("rank", random.randint(1, 4096)),
            ("form", random.choice(("mlp", "linear", "other:form"))),
            ("activation", random.choice(("identity", "relu", "silu", "tanh"))),
            ("reads.width", random.choice((1, 31, 33, 65536))),
            ("writes.space", random.choice(("labels", "logits"))),
            ("labels", [str(n) for n in range(random.choice((1, 2, 4, 5000)))]),
            ("card.kind", random.choice(("none", "texts", "vectors", "statistics"))),
            ("card.fit", random.randint(1, 256)),
            ("card.gate", random.randint(0, 256)),
            ("canary.tolerance", random.choice((1e-300, 1e300))),
            ("temperature", random.choice((1e-300, 1e300))),
            ("bus_api", random.choice((">=2", "<1", "==1.0", "nonsense", "~=1"))),
            ("id", random.choice(("backbone", "a", "x" * 64))),
        )
    )
    *parents, last = path.split(".")
    node = manifest
    for parent in parents:
        node = node[parent]
    node[last] = value


MANIFEST: Mapping[str, Change] = {
    "key missing": _edited(_drop),
    "key unknown": _edited(_add),
    "another value": _edited(_replace),
    "another contract": _edited(_contract),
    "file name": _edited(_file),
    "file of another part": _edited(_other_file),
    "key twice": _twice,
    "literal": _raw,
    "white space": lambda data, random: data.replace(b"\n", b"\r\n\t" * random.randint(1, 9)),
    "byte order mark": lambda data, random: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data, random: data.decode().encode("utf-16"),
    "deep": lambda data, random: b"[" * random.choice((100, 10_000, 2**20)),
    "list": lambda data, random: b"[" + data + b"]",
    "two documents": lambda data, random: data + data,
    "huge": lambda data, random: data.rstrip()[:-1] + b" " * random.choice((2**20, 2**23)) + b"}",
    "many parts": lambda data, random: b'{"labels":[' + b"[]," * 2**20 + b"[]]}",
}
"""Name → a change to the manifest."""
