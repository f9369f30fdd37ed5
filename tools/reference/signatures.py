"""Signatures as written in the source."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

__all__ = ["flat_signature", "signature", "signature_of"]

WIDTH = 88
"""Longer signatures have a line for each parameter."""

GAP = inspect.Parameter.empty


def signature_of(thing: Any) -> str:
    """Return the signature of a function, or of a class's constructor."""
    inspected = inspect.signature(thing)
    if isinstance(thing, type):
        inspected = inspected.replace(return_annotation=inspect.Signature.empty)
        if issubclass(thing, msgspec.Struct):
            inspected = _as_written(inspected, thing)
    return signature(inspected)


def signature(inspected: inspect.Signature) -> str:
    """Return a signature as in the source, on one line if it fits."""
    parts, back = list(_parts(inspected)), _back(inspected)
    flat = f"({', '.join(parts)}){back}"
    if len(flat) <= WIDTH:
        return flat
    lines = "".join(f"    {part},\n" for part in parts)
    return f"(\n{lines}){back}"


def flat_signature(thing: Callable[..., Any], *, skip_self: bool) -> str:
    """Return a method's signature on one line, as it is called."""
    inspected = inspect.signature(thing)
    if skip_self:
        inspected = inspected.replace(parameters=list(inspected.parameters.values())[1:])
    return f"({', '.join(_parts(inspected))}){_back(inspected)}"


def _back(inspected: inspect.Signature) -> str:
    return (
        ""
        if inspected.return_annotation is GAP
        else f" -> {_annotation(inspected.return_annotation)}"
    )


def _parts(inspected: inspect.Signature) -> Iterator[str]:
    starred = False
    for p in inspected.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        if p.kind is p.VAR_POSITIONAL:
            starred = True
        yield _parameter(p)


def _parameter(p: inspect.Parameter) -> str:
    stars = "*" * ((p.kind is p.VAR_POSITIONAL) + 2 * (p.kind is p.VAR_KEYWORD))
    typed = "" if p.annotation is GAP else f": {_annotation(p.annotation)}"
    if p.default is GAP:
        return f"{stars}{p.name}{typed}"
    sign = " = " if typed else "="
    return f"{stars}{p.name}{typed}{sign}{_default(p.default)}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    """Return a default as written in the source, as far as that is known."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({_differing(value)})"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    text = repr(value)
    return "…" if text.startswith("<") else text


def _differing(value: Any) -> str:
    """Return the fields of a dataclass that are not at their default."""
    parts = (
        f"{f.name}={getattr(value, f.name)!r}"
        for f in dataclasses.fields(value)
        if getattr(value, f.name) != f.default
    )
    return ", ".join(parts)


def _as_written(inspected: inspect.Signature, struct: type) -> inspect.Signature:
    """Take a struct's annotations from its source, because msgspec resolves aliases."""
    written: dict[str, Any] = {}
    for one in reversed(struct.__mro__):
        written |= vars(one).get("__annotations__", {})
    parameters = [p.replace(annotation=written[p.name]) for p in inspected.parameters.values()]
    return inspected.replace(parameters=parameters)
