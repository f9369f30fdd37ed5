"""An author's documents in parts, cut into passages.

Whole documents are set aside, never lines: what a card shows was never trained on, nor was
anything else of its document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ...registry.errors import UsageError
from ..authoring.parts import Parts
from ..rows import Row

__all__ = ["split_documents"]

CARD_PASSAGES = 32
LONGEST = 800
"""Characters of a passage: some 200 tokens."""


def split_documents(rows: Sequence[Row], *, valid: Sequence[Row] | None = None) -> Parts:
    """Set whole documents aside, by the hash of their names.

    A quarter of them is for the card, a tenth to stop early on.

    Args:
        rows: Texts; `domain` names the document a text is from, None makes it one of its own.
        valid: Validation texts of the author's own.

    Raises:
        UsageError: If there are fewer than five documents, or those to learn from say nothing that
            those set aside do not say.
    """
    by_name: dict[str, list[str]] = {}
    for row in rows:
        by_name.setdefault(row.text if row.domain is None else row.domain, []).append(row.text)
    names = sorted(by_name, key=lambda n: hashlib.sha256(n.encode()).hexdigest())
    if len(names) < 5:  # noqa: PLR2004  (one for every part, and two to learn from)
        raise UsageError(
            "too few documents to set any aside", expected="at least 5", found=str(len(names))
        )
    card, stop = max(1, len(names) // 8), max(1, len(names) // 10) if valid is None else 0
    cuts = (card, 2 * card, 2 * card + stop, len(names))
    chosen, start, known = [], 0, set[str]()
    for end in cuts:
        found = [p for n in names[start:end] for text in by_name[n] for p in _passages(text)]
        fresh = [p for p in dict.fromkeys(found) if p not in known]
        known |= set(fresh)
        chosen.append(tuple(Row(text=p, label="") for p in fresh))
        start = end
    fit, gate, validation, train = chosen
    if valid is not None:
        told = dict.fromkeys(p for row in valid for p in _passages(row.text))
        validation = tuple(Row(text=p, label="") for p in told if p not in known)
    if not train:
        raise UsageError(
            "the documents say the same",
            expected="passages to learn from that do not stand in those set aside",
            found=f"{len(known)} different ones in {len(names)} documents",
        )
    return Parts(train=train, valid=validation, fit=_some(fit), gate=_some(gate))


def _passages(text: str) -> list[str]:
    """Cut a text at line ends, else between words, into passages of at most `LONGEST` characters.

    What is lost is the white space between two.
    """
    told, rest = [], text.strip("\n")
    while len(rest) > LONGEST:
        cut = max(rest.rfind("\n", 0, LONGEST), 0) or max(rest.rfind(" ", 0, LONGEST), 0) or LONGEST
        told.append(rest[:cut])
        rest = rest[cut:].strip("\n")
    return [t for t in (*told, rest) if t.strip()]


def _some(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return at most so many rows, evenly spread over them."""
    step = -(-len(rows) // CARD_PASSAGES)
    return rows[:: max(step, 1)]
