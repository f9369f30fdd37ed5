"""Names of parts, modes and layers in messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from redhost.registry.errors import suggest

__all__ = ["check_name", "numbered"]


def check_name(name: str, known: Collection[str], *, what: str) -> None:
    """Check that a name is known.

    Raises:
        ValueError: It is not; the message lists the closest and all known names.
    """
    if name not in known:
        raise ValueError(
            f"unknown {what} {name!r}. {suggest(name, known)}Known: {', '.join(known)}."
        )


def numbered(parts: Sequence[nn.Module], *, what: str = "part") -> dict[str, nn.Module]:
    """Return the parts by their names in messages: ``part 0``, ``part 1``, …."""
    return {f"{what} {index}": part for index, part in enumerate(parts)}
