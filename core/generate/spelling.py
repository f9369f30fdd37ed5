"""A text as the bus of a generating backbone sees it: a row for each token.

    row t      the state after [start, x_1 … x_t-1]
    its answer x_t, by number

The tokenizer's start token stands before every text, so that its first token is told as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...registry.errors import UsageError
from ..backbones.trunk import Trunk
from ..rows import Row

__all__ = ["byte_counts", "spell", "start_of", "unfold"]


def start_of(trunk: Trunk) -> int:
    """Return the token that stands before every text.

    Raises:
        UsageError: If the tokenizer has neither a token for the start of a text nor one for its
            end.
    """
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(trunk.tokenizer, name, None)
        if token is not None:
            return int(token)
    raise UsageError(
        "the tokenizer has no token to start a text with",
        expected="a bos_token or an eos_token",
        found="neither",
    )


def spell(trunk: Trunk, text: str, *, whole: bool = False) -> list[int]:
    """Return the numbers of a text's tokens, without the start.

    Args:
        trunk: Whose tokens.
        text: Not empty.
        whole: Whether a text that is longer than the trunk reads is left so, not cut there.

    Raises:
        UsageError: If it has none.
    """
    with trunk.guard:
        ids = list(trunk.tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise UsageError("a text has no tokens", expected="at least one", found=repr(text))
    return ids if whole else ids[: trunk.longest]


def unfold(trunk: Trunk, rows: Sequence[Row]) -> list[Row]:
    """Return a row for each token of texts: its number is the label, the domain is the text's."""
    return [
        Row(text="", label=str(token), domain=row.domain)
        for row in rows
        for token in spell(trunk, row.text)
    ]


def byte_counts(trunk: Trunk, texts: Sequence[str]) -> list[int]:
    """Return how many bytes of UTF-8 the tokens of each text stand for."""
    counts = []
    for text in texts:
        ids = spell(trunk, text)
        cut = len(ids) == trunk.longest
        told = str(trunk.tokenizer.decode(ids)) if cut else text
        counts.append(len(told.encode()))
    return counts
