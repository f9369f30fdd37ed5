"""Live shares: the observed share of each column, estimated by servers, for the next router."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ..atomic import read_struct, write_struct

FILE = "live.json"

Share = Annotated[float, Meta(ge=0, le=1)]


class LiveShares(Struct, frozen=True, kw_only=True):
    """Live shares of the columns of one generation.

    Attributes:
        schema: The version of this schema.
        generation: The generation whose routing weights they were estimated from.
        shares: By column; they sum to 1.
        texts: The number of texts that they were estimated from.
        when: When they were written, in ISO 8601.
    """

    schema: Literal["redhost.live/1"] = "redhost.live/1"
    generation: int
    shares: dict[str, Share]
    texts: Annotated[int, Meta(ge=0)]
    when: str = msgspec.field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )


def write_live_shares(home: Path, shares: LiveShares) -> None:
    """Write live shares into a home, replacing earlier ones."""
    write_struct(home / FILE, shares)


def read_live_shares(home: Path) -> LiveShares | None:
    """Return the last live shares of a home; None if no server has written any.

    Raises:
        StoreError: If the file is damaged.
    """
    return read_struct(home / FILE, LiveShares, hint="Delete the file; a server writes it again.")
