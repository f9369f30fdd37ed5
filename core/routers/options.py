"""Router kinds with options as one string: ``topk:k=2,noise=0.1``."""

from __future__ import annotations

from collections.abc import Mapping

from ...registry.errors import UsageError


def parse_kind(text: str) -> tuple[str, dict[str, str]]:
    """Split ``kind:name=value,…`` into the kind and its options.

    Raises:
        UsageError: If an option has no value.
    """
    kind, _, listed = text.partition(":")
    options = {}
    for part in filter(None, listed.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise UsageError(f"router {text!r}", expected="options as name=value", found=repr(part))
        options[name] = value
    return kind, options


def read_options(
    kind: str, given: Mapping[str, str], types: Mapping[str, type[int] | type[float]]
) -> dict[str, int | float]:
    """Return the options of a kind as numbers.

    Raises:
        UsageError: If one is unknown, not a number, or negative.
    """
    read: dict[str, int | float] = {}
    for name, value in given.items():
        if name not in types:
            listed = ", ".join(sorted(types)) or "no options"
            raise UsageError(f"option {name!r} of router {kind!r}", expected=listed, found=name)
        try:
            read[name] = types[name](value)
        except ValueError as e:
            raise UsageError(
                f"option {name!r} of router {kind!r}",
                expected="a whole number" if types[name] is int else "a number",
                found=repr(value),
            ) from e
        if not read[name] >= 0:  # catches NaN as well
            raise UsageError(
                f"option {name!r} of router {kind!r}", expected="0 or more", found=value
            )
    return read
