"""An author's documents: read from files, and split into passages before anything is trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from redhost_author.training.data import DataSplits

from redhost.core.training.rows import read_rows
from redhost.core.types import Row
from redhost.registry.errors import UsageError

__all__ = ["read_documents", "split_documents"]

CARD_PASSAGES = 32
"""Most passages in each half of a card."""

LONGEST_PASSAGE = 800
"""Most characters in a passage: some 200 tokens."""


def read_documents(
    source: str | Path, *, text_field: str = "text", document_field: str = "document"
) -> list[Row]:
    """Read texts for text generation; `domain` of a row names its document, if that is known.

    Args:
        source: As for `redhost.core.training.rows.read_table`.
        text_field: Field of the text.
        document_field: Field of the name of the text's document.

    Raises:
        UsageError: If the file cannot be read; the message names the line.
    """
    return read_rows(
        source, task="generation", text_field=text_field, document_field=document_field
    )


def split_documents(rows: Sequence[Row], *, valid: Sequence[Row] | None = None) -> DataSplits:
    """Split whole documents by the hash of their names.

    A quarter of them goes to the card, a tenth to validation.

    Args:
        rows: Texts; `domain` names a text's document. A text without one is its own document.
        valid: Validation texts of the author's own.

    Raises:
        UsageError: If there are fewer than five documents, or all passages of the training
            documents also occur in the others.
    """
    by_name: dict[str, list[str]] = {}
    for row in rows:
        by_name.setdefault(row.text if row.domain is None else row.domain, []).append(row.text)
    names = sorted(by_name, key=_digest)
    if len(names) < 5:  # noqa: PLR2004  (one for each other split, and two for training)
        raise UsageError(
            "too few documents to set any aside", expected="at least 5", found=str(len(names))
        )
    card, stop = max(1, len(names) // 8), max(1, len(names) // 10) if valid is None else 0
    cuts = (card, 2 * card, 2 * card + stop, len(names))
    known: set[str] = set()

    def fresh(texts: Iterable[str]) -> tuple[Row, ...]:
        """Return the passages of texts that are in no split yet."""
        new = dict.fromkeys(p for text in texts for p in _passages(text) if p not in known)
        known.update(new)
        return tuple(Row(text=p, label="") for p in new)

    fit, gate, validation, train = (
        fresh(text for name in names[start:end] for text in by_name[name])
        for start, end in pairwise((0, *cuts))
    )
    if not train:
        raise UsageError(
            "the documents say the same",
            expected="passages to learn from that do not stand in those set aside",
            found=f"{len(known)} different ones in {len(names)} documents",
        )
    if valid is not None:
        validation = fresh(row.text for row in valid)
    return DataSplits(train=train, valid=validation, fit=_spread(fit), gate=_spread(gate))


def _passages(text: str) -> list[str]:
    """Cut a text at line ends, else between words, into passages of at most `LONGEST_PASSAGE`.

    Only white space between passages is lost.
    """
    passages, rest = [], text.strip("\n")
    while len(rest) > LONGEST_PASSAGE:
        cut = (
            max(rest.rfind("\n", 0, LONGEST_PASSAGE), 0)
            or max(rest.rfind(" ", 0, LONGEST_PASSAGE), 0)
            or LONGEST_PASSAGE
        )
        passages.append(rest[:cut])
        rest = rest[cut:].strip("\n")
    return [t for t in (*passages, rest) if t.strip()]


def _spread(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return at most `CARD_PASSAGES` rows, evenly spaced."""
    step = -(-len(rows) // CARD_PASSAGES)
    return rows[:: max(step, 1)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
