"""Output types of ``--json`` for which the core has no struct.

Only type checkers and the reference import this module: the commands build plain dictionaries.
"""

from __future__ import annotations

from typing import TypedDict

from ..registry.home.locks import Lease


class RolledBack(TypedDict):
    """The generation that is current again.

    Attributes:
        generation: Its number.
        experts: Ids of its experts.
    """

    generation: int
    experts: list[str]


class Collected(TypedDict):
    """What was removed, or would be.

    Attributes:
        dry_run: Whether nothing was removed.
        generations: Numbers, ascending.
        digests: Packages in the store that only these generations needed.
        bytes: The size of both together.
        held: Leases of live processes on generations that would otherwise be removed.
    """

    dry_run: bool
    generations: tuple[int, ...]
    digests: tuple[str, ...]
    bytes: int
    held: tuple[Lease, ...]
