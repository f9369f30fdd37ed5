"""The JSON form of a type: its keys, their types and ranges, from the type itself."""

from __future__ import annotations

import builtins
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints
from typing import is_typeddict as is_typed_dict

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .docstrings import attributes

__all__ = ["Key", "is_shape", "keys", "parts", "range_text", "shapes_in", "type_text"]

NO_FINAL_NEWLINE = r"(?!\n)"
"""The end of every pattern, because Python's ``$`` also matches before a final newline."""

WORDS = {str: "string", int: "integer", float: "number", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a JSON object.

    Attributes:
        name: Its name in the file.
        type: The type of its value.
        text: Its meaning.
        default: The value of an absent key, as JSON; None if the key is required.
        optional: Whether it may be absent from written files.
    """

    name: str
    type: Any
    text: str
    default: str | None = None
    optional: bool = False


def is_shape(type_: Any) -> bool:
    """Return whether a type is an object with keys of its own."""
    if not isinstance(type_, type):
        return False
    return (
        issubclass(type_, msgspec.Struct) or dataclasses.is_dataclass(type_) or is_typed_dict(type_)
    )


def keys(shape: type) -> tuple[Key, ...]:
    """Return the keys of a struct, dataclass or typed dictionary.

    Raises:
        KeyError: If its docstring does not describe one of them.
    """
    described = {k: v for one in reversed(shape.__mro__) for k, v in attributes(one).items()}
    hints = get_type_hints(shape, include_extras=True)
    defaults = _defaults(shape)
    return tuple(
        Key(
            name=name,
            type=hints[name],
            text=described[name],
            default=defaults.get(name),
            optional=_may_be_absent(shape, name, hints[name]),
        )
        for name in _names(shape)
    )


def _names(shape: type) -> Sequence[str]:
    if issubclass(shape, msgspec.Struct):
        return shape.__struct_encode_fields__
    if dataclasses.is_dataclass(shape):
        return [f.name for f in dataclasses.fields(shape)]
    return list(shape.__annotations__)


def _defaults(shape: type) -> dict[str, str]:
    """Return the defaults that a reader of the JSON fills in, as JSON."""
    if not issubclass(shape, msgspec.Struct):
        return {}
    found = {}
    for f in msgspec.structs.fields(shape):
        if f.default_factory is not msgspec.NODEFAULT:
            found[f.encode_name] = msgspec.json.encode(f.default_factory()).decode()
        elif f.default is UNSET:
            found[f.encode_name] = "absent"
        elif f.default is not msgspec.NODEFAULT:
            found[f.encode_name] = msgspec.json.encode(f.default).decode()
    return found


def _may_be_absent(shape: type, name: str, type_: Any) -> bool:
    sparse = issubclass(shape, msgspec.Struct) and shape.__struct_config__.omit_defaults
    return (
        (sparse and name in _defaults(shape))
        or UnsetType in parts(type_)
        or get_origin(type_) is NotRequired
    )


def parts(type_: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type alone."""
    bare, _ = _bare(type_)
    return get_args(bare) if get_origin(bare) in {Union, types.UnionType} else (bare,)


def _bare(type_: Any) -> tuple[Any, Meta | None]:
    """Return the type without its annotations, and the one that has its range."""
    if get_origin(type_) is NotRequired:
        return _bare(get_args(type_)[0])
    if get_origin(type_) is Annotated:
        inner, *extras = get_args(type_)
        metas = [e for e in extras if isinstance(e, Meta)]
        bare, below = _bare(inner)
        return bare, metas[0] if metas else below
    return type_, None


def type_text(type_: Any, links: Mapping[type, str]) -> str:
    """Return a type in words.

    Args:
        type_: The type.
        links: Shapes with sections of their own, with the Markdown links to these.
    """
    several = [p for p in parts(type_) if p is not UnsetType]
    if len(several) > 1:
        return " or ".join(type_text(p, links) for p in several)
    bare, _ = _bare(several[0])
    inner = get_args(bare)
    match get_origin(bare):
        case None:
            found = links[bare] if bare in links else WORDS[bare]
        case typing.Literal:
            found = " or ".join(f"`{msgspec.json.encode(v).decode()}`" for v in inner)
        case builtins.dict:
            found = f"object, key → {type_text(inner[1], links)}"
        case builtins.tuple if Ellipsis not in inner:
            found = f"list of {len(inner)}: " + ", ".join(type_text(x, links) for x in inner)
        case _:
            found = f"list of {type_text(inner[0], links)}"
    return found


def range_text(type_: Any) -> str:
    """Return the range that a type allows, in words; empty if it allows everything."""
    found = []
    for part in parts(type_):
        bare, meta = _bare(part)
        if get_origin(bare) in {dict, list, tuple}:
            found += [range_text(x) for x in get_args(bare) if x is not Ellipsis]
        found += _range(meta or _bare(type_)[1])
    return "; ".join(dict.fromkeys(x for x in found if x))


def _range(meta: Meta | None) -> Iterator[str]:
    if meta is None:
        return
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    for name, sign in signs.items():
        if (limit := getattr(meta, name)) is not None:
            yield f"{sign} {limit:,}"
    if meta.max_length is not None:
        yield f"at most {meta.max_length:,}"
    if meta.extra_json_schema is not None:
        yield " or ".join(
            f"`{msgspec.json.encode(v).decode()}`" for v in meta.extra_json_schema["enum"]
        )
    if meta.pattern is not None:
        yield f"`{meta.pattern.removesuffix(NO_FINAL_NEWLINE)}`"


def shapes_in(type_: Any, *, within: tuple[type, ...] = ()) -> Iterator[type]:
    """Yield every shape within a type: itself first, and each before those within it.

    Args:
        type_: The type.
        within: The shapes that contain it: a shape may contain its own kind.
    """
    for part in parts(type_):
        bare, _ = _bare(part)
        if is_shape(bare):
            if bare not in within:
                yield bare
                for key in keys(bare):
                    yield from shapes_in(key.type, within=(*within, bare))
        else:
            for inner in get_args(bare):
                if inner is not Ellipsis and not isinstance(inner, (str, int)):
                    yield from shapes_in(inner, within=within)
