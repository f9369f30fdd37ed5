"""What commands print with ``--json`` where the core has no struct for it.

Only type checkers and the reference import this module: the commands build plain dictionaries.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ..core.model.decode import Token
from ..registry.home.locks import Lease
from ..registry.package.checked import Violation


class Report(TypedDict):
    """What was checked, and what is wrong with it.

    Attributes:
        target: What was typed, or the id of an installed expert.
        ok: Whether nothing is wrong.
        violations: What is wrong, the first failure first.
    """

    target: str
    ok: bool
    violations: list[Violation]


class Generated(TypedDict):
    """A text and its continuation.

    Attributes:
        prompt: The text it was given.
        text: What was added.
        generation: The generation that wrote it.
        seed: Where randomness came from.
        temperature: As given.
        tokens: How many were added.
        weights: Mean α over the tokens, by column.
        table: Each token, with ``--explain``.
    """

    prompt: str
    text: str
    generation: int | None
    seed: int
    temperature: float
    tokens: int
    weights: dict[str, float]
    table: NotRequired[list[Token]]


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
        digests: Packages in the store that only they needed.
        bytes: Of both together.
        held: Leases of live processes on generations that would be gone without them.
    """

    dry_run: bool
    generations: tuple[int, ...]
    digests: tuple[str, ...]
    bytes: int
    held: tuple[Lease, ...]


class KeyPair(TypedDict):
    """A pair of keys that was made.

    Attributes:
        private: Path of the private key.
        public: Path of the public key.
        fingerprint: The sha256 of the public key.
    """

    private: str
    public: str
    fingerprint: str
