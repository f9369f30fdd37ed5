"""What each word of a text adds to scores, and how a reader of the text would write it.

A token reads as the part of the text that it stands for, with … where a word goes on before or
after it; a pair as the part from its first token to its second, and blanks as in Python. What
stands for no part of the text, such as the token that begins all texts, is decoded, and beside a
word reads as (start) or (end).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from .places import ENDLESS, Words, in_order, vocabulary_of

if TYPE_CHECKING:
    from redhost.core.backbones.backbone import Backbone

__all__ = ["ByWord", "named_words"]

Names = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ByWord:
    """Scores of Y labels for one text, as a sum over its words.

    Attributes:
        names: The words and pairs of words at each of P places; several if they share one.
        terms: What each place adds, ``(P, Y)``.
        encoder: What is added besides: from z, and for every text alike, ``(Y,)``.
    """

    names: Names
    terms: Tensor
    encoder: Tensor


def named_words(backbone: Backbone, text: str) -> tuple[Words, Names]:
    """Return the words of one text, and what is written at each of its places."""
    trunk, vocabulary = backbone.trunk, vocabulary_of(backbone)
    with trunk.lock:  # the limit is a setting of the tokenizer
        ids = trunk.token_ids(text, truncation=True, max_length=ENDLESS)
        # A tokenizer in Python alone has no such part, and no offsets.
        fast = getattr(trunk.tokenizer, "backend_tokenizer", None)
        spans = fast.encode(text).offsets if fast else [(0, 0)] * len(ids)
    tokenizer = cast("Any", fast or trunk.tokenizer)
    words = Words.of_tokens([ids], vocabulary=vocabulary)
    names: dict[int, dict[str, None]] = {}
    counted = {*words.places.tolist()}
    for n, place in enumerate(in_order(np.array(ids, dtype=np.int64), vocabulary).tolist()):
        if place in counted:
            tokens = slice(n // 2, n // 2 + n % 2 + 1)  # one, or the two of a pair
            written = _written(tokenizer, text, ids[tokens], spans[tokens])
            names.setdefault(place, {})[written] = None
    return words, tuple(tuple(names[place]) for place in words.places.tolist())


def _written(tokenizer: Any, text: str, ids: list[int], spans: Sequence[tuple[int, int]]) -> str:
    """Return adjacent tokens as a reader would write them, given their parts of the text."""
    first, past = spans[0][0], spans[-1][1]
    parts = [text[a:b] for a, b in spans]
    if all(part.split() for part in parts):
        before, after = text[first - 1 : first + 1], text[past - 1 : past + 1]
        return f"{_more(before)}{' '.join(text[first:past].split())}{_more(after)}"
    if all(parts):
        return repr(text[first:past])  # blanks
    # Many tokenizers begin and end texts by tokens of their own: a pair with one says where.
    if parts[-1] and not text[: spans[-1][0]].strip():
        return f"(start) {_written(tokenizer, text, ids[-1:], spans[-1:])}"
    if parts[0] and not text[spans[0][1] :].strip():
        return f"{_written(tokenizer, text, ids[:1], spans[:1])} (end)"
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    return " ".join(decoded.split()) or repr(decoded)


def _more(characters: str) -> str:
    """Return … if two adjacent characters are of one word."""
    within = len(characters) == 2 and all(c.isalnum() for c in characters)  # noqa: PLR2004
    return "…" if within else ""
