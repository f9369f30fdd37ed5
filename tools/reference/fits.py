"""Check that a JSON value has a given type: exact keys, types and ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

import msgspec

from .shapes import is_shape, keys, parts

__all__ = ["misfits"]


def misfits(value: Any, type_: Any, *, also: Mapping[str, Any] | None = None) -> list[str]:
    """Return the violations of a value, one line each.

    Args:
        value: The printed value, decoded.
        type_: The expected type.
        also: Keys that it may have as well, with their types.
    """
    more = {k: v for k, v in value.items() if k in also} if also else {}
    bare = {k: v for k, v in value.items() if k not in more} if more else value
    try:
        msgspec.convert(bare, type_)
    except msgspec.ValidationError as e:
        return [str(e)]
    found = list(_keys(bare, type_, "$"))
    return found + [x for k, v in more.items() for x in misfits(v, (also or {})[k])]


def _keys(value: Any, type_: Any, where: str) -> Iterator[str]:
    """Yield additional or missing keys; the types have already been checked."""
    for part in parts(type_):
        inner = get_args(part)
        if is_shape(part) and isinstance(value, dict):
            known = {k.name: k for k in keys(part)}
            yield from (f"{where}: unknown key {k!r}" for k in value if k not in known)
            needed = [k for k, key in known.items() if not key.optional]
            yield from (f"{where}: no key {k!r}" for k in needed if k not in value)
            for k in known.keys() & value.keys():
                yield from _keys(value[k], known[k].type, f"{where}.{k}")
        elif get_origin(part) is dict and isinstance(value, dict):
            for k, v in value.items():
                yield from _keys(v, inner[1], f"{where}.{k}")
        elif get_origin(part) in {list, tuple} and isinstance(value, list):
            for n, v in enumerate(value):
                yield from _keys(v, inner[0], f"{where}[{n}]")
