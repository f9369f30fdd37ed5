"""The prior of a composition: the shares of its columns in the texts that are expected.

A router's weights α are posteriors under the shares p that it learnt under. If texts arrive in
shares q instead, the posteriors are α_k q_k / p_k, normalised (Saerens, Latinne and Decaestecker
2002, equation 2): log q_k − log p_k is added to the logits, and nothing is trained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
from msgspec import Meta, Struct
from torch import Tensor

from ...registry.atomic import read_struct, write_struct
from ...registry.errors import MissingError, SettingsError, UnknownNameError

CARDS = "cards"
"""The shares that the router learnt under."""
UNIFORM = "uniform"
LIVE = "live"
"""The observed share of each column, estimated by servers."""

LIVE_FILE = "live.json"
"""The file of a home with live shares."""

FEWEST = 200
"""Fewest texts that live shares may be estimated from; with 200, a share of ½ is known to ± .07."""


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
    shares: dict[str, Annotated[float, Meta(ge=0, le=1)]]
    texts: Annotated[int, Meta(ge=0)]
    when: str = msgspec.field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )


def write_live_shares(home: Path, shares: LiveShares) -> None:
    """Write live shares into a home, replacing earlier ones."""
    write_struct(home / LIVE_FILE, shares)


def read_prior(given: str | None, *, home: Path) -> str | None:
    """Return a prior as shares or as a word that needs no file; None means `CARDS`.

    Args:
        given: ``cards``, ``uniform``, ``live``, shares such as ``mail=0.7,news=0.3``, or a JSON
            file with a share by expert.
        home: The home that has the live shares.

    Raises:
        SettingsError: If it cannot be read.
        MissingError: If there are no live shares, or too few texts for them.
        StoreError: If the file of live shares is damaged.
    """
    if given in {None, CARDS}:
        return None
    if given == UNIFORM:
        return UNIFORM
    if given == LIVE:
        return written(_live(home))
    return written(_from_text(given or ""))


def written(shares: Mapping[str, float]) -> str:
    """Return shares as text that `read_prior` accepts."""
    return ",".join(f"{column}={share:.6g}" for column, share in sorted(shares.items()))


def expected_shares(
    prior: str | None, columns: Sequence[str], learnt: Tensor, *, departed: Collection[str] = ()
) -> Tensor:
    """Return q ``(K,)``, which sums to 1.

    Args:
        prior: What `read_prior` returns.
        columns: The columns.
        learnt: p ``(K,)``. A column that the prior does not name keeps its share of these.
        departed: Other names that the prior may have: experts that have left.

    Raises:
        UnknownNameError: If the prior names something else.
    """
    if prior is None:
        return learnt
    if prior == UNIFORM:
        return torch.full_like(learnt, 1 / len(columns))
    shares = _from_text(prior)
    for name in shares:
        if name not in {*columns, *departed}:
            raise UnknownNameError("expert of the prior", name, columns)
    named = torch.tensor([column in shares for column in columns])
    q = torch.tensor([shares.get(column, 0.0) for column in columns], dtype=torch.float64)
    # All experts that it names have left: the cards' shares hold again.
    if not bool(named.any()):
        return learnt
    # Named columns share what they had together, so that the others stay as they were learnt.
    return torch.where(named, q * (learnt[named].sum() / q.sum()), learnt)


def _live(home: Path) -> dict[str, float]:
    """Return live shares, with one text added to each column so that none is zero."""
    hint = "Serve texts with 'redhost serve' first; of a fleet, run 'redhost fleet shares'."
    invalid = "Delete the file; a server writes it again."
    counted = read_struct(home / LIVE_FILE, LiveShares, hint=invalid)
    if counted is None:
        raise MissingError(f"there are no live shares in {home}", hint=hint)
    if counted.texts < FEWEST:
        raise MissingError(
            "live shares are of too few texts",
            expected=f"at least {FEWEST}",
            found=str(counted.texts),
            hint=hint,
        )
    # Laplace's rule: an expert that no text has reached yet may be needed by the next one.
    texts, columns = counted.texts, len(counted.shares)
    return {c: (texts * share + 1) / (texts + columns) for c, share in counted.shares.items()}


def _from_text(given: str) -> dict[str, float]:
    """Return shares from text or from a file."""
    try:
        if "=" in given:
            pairs = [part.partition("=") for part in given.split(",")]
            shares = {name.strip(): float(share) for name, _, share in pairs}
            if len(shares) < len(pairs):
                raise ValueError("a name twice")
        else:
            text = Path(given).read_text("utf-8-sig")
            shares = msgspec.json.decode(text, type=dict[str, float])
    except (OSError, ValueError, msgspec.DecodeError) as e:
        raise _unreadable(given, str(e)) from e
    outside = [name for name, share in shares.items() if not 0 < share <= 1]
    if outside or not shares:
        raise _unreadable(given, f"{outside[0]!r}: {shares[outside[0]]}" if outside else "no share")
    return shares


def _unreadable(given: str, found: str) -> SettingsError:
    return SettingsError(
        f"prior {given!r}",
        expected=f"{CARDS}, {UNIFORM}, {LIVE}, shares above 0 such as mail=0.7,news=0.3, or a "
        "JSON file of them",
        found=found,
    )
