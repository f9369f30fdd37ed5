"""A backbone is tried before it is used: texts of all kinds, alone and in company.

A package may be what its manifest says and still end in an error at the first long text, or answer
by what it read before. So `redhost new-backbone` and `redhost check` encode short, empty, long,
over-long, upper-case, emoji and right-to-left texts, and compare every text's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import Tensor

from redhost.core.backbones.encoder import TextEncoder
from redhost.registry.errors import RedhostError, UsageError

WORDS = ("the", "committee", "meets", "on", "thursday", "to", "discuss", "a", "new", "budget")

TEXTS = (
    "a",
    "",
    "What is 37 plus 12?",
    "GOOD MORNING TO ALL OF YOU",
    "Good Morning to all of you",
    "👩‍🚀 ✓ 🇩🇪 e\u0301",
    "שלום עולם، مرحبا بالعالم",
    " ".join(WORDS),
)

SHORT = 64
"""Tokens of a text above which --max-tokens may help."""

SHORTEST_REACH = 512
"""Tokens that every backbone is tried on, if it reads as many."""

WORK = 3 * 10**11
"""Most multiplications of a pass over a long text: some seconds. A model's longest input beyond
that is taken from its configuration, untried."""


def trial_texts(trunk: TextEncoder) -> list[str]:
    """Return the texts that an encoder is tried on: those that have tokens, and long ones."""
    size = sum(p.numel() for p in trunk.model.parameters())
    reach = max(SHORTEST_REACH, WORK // max(size, 1))
    # Every word is a token or more.
    longest = trunk.longest or SHORTEST_REACH
    long = longest + len(TEXTS) if longest <= reach else reach // 2
    texts = [*TEXTS, *(" ".join(islice(cycle(WORDS), n)) for n in (long // 2, long))]
    return [text for text in texts if _has_tokens(trunk, text)]


def encoded(trunk: TextEncoder, texts: Sequence[str], *, name: str) -> Tensor:
    """Return h ``(N, D)`` of texts in one call.

    Args:
        trunk: The encoder.
        texts: N texts.
        name: The backbone's name.

    Raises:
        UsageError: If it fails, or h is not as wide as it should be or not finite.
    """
    try:
        h = trunk.encode(texts)
    except RedhostError:
        raise
    except Exception as e:  # models raise errors of any type at texts that they cannot read
        for text in texts if len(texts) > 1 else ():
            encoded(trunk, [text], name=name)  # which of them is it?
        longest = max(len(trunk.tokens(text)) for text in texts)
        reason = next(iter(str(e).splitlines()), "") or type(e).__name__
        hint = "Give a smaller --max-tokens, if shorter texts do." if longest > SHORT else ""
        raise refused(trunk, name, f"h of a text of {longest} tokens", reason, hint=hint) from e
    if h.shape[1] != trunk.width:
        wide = "states as wide as hidden_size, so that h has width"
        raise refused(trunk, name, f"{wide} {trunk.width}", f"width {h.shape[1]}")
    if not bool(h.isfinite().all()):
        raise refused(trunk, name, "finite numbers", "NaN or infinity")
    return h


def encoded_alone(trunk: TextEncoder, texts: Sequence[str], *, name: str) -> Tensor:
    """Return h ``(N, D)`` of texts, each in a call of its own, the last text first.

    Raises:
        UsageError: If one fails.
    """
    return torch.cat([encoded(trunk, [text], name=name) for text in reversed(texts)][::-1])


def require_repeatable(trunk: TextEncoder, *, name: str) -> tuple[list[str], Tensor]:
    """Return the trial's texts and their h, whose bits are the same alone and in company.

    Raises:
        UsageError: If the encoder fails at a text, or a text's bits depend on other texts.
    """
    texts = trial_texts(trunk)
    if not texts:
        raise refused(trunk, name, "a tokenizer that has tokens for words", "none")
    h = encoded(trunk, texts, name=name)
    require_equal(trunk, texts, h, encoded_alone(trunk, texts, name=name), name=name)
    return texts, h


def require_equal(
    trunk: TextEncoder, texts: Sequence[str], h: Tensor, other: Tensor, *, name: str
) -> None:
    """Check that texts have the same bits in two computations.

    Raises:
        UsageError: If one has not.
    """
    differing = [t for t, a, b in zip(texts, h, other, strict=True) if not torch.equal(a, b)]
    if differing:
        tokens = len(trunk.tokens(differing[0]))
        others = f"others beside other texts, or in another process, for a text of {tokens} tokens"
        hint = "If it is for long texts only, give a smaller --max-tokens."
        raise refused(trunk, name, "the bits that a text has alone", others, hint=hint)


def refused(
    trunk: TextEncoder, name: str, expected: str, found: str, *, hint: str = ""
) -> UsageError:
    """Return the error of an encoder that cannot be used."""
    problem = f"backbone {name!r} ({type(trunk.model).__name__}) cannot be used"
    return UsageError(problem, expected=expected, found=found, hint=hint)


def _has_tokens(trunk: TextEncoder, text: str) -> bool:
    try:
        trunk.tokens(text)
    except UsageError:
        return False
    return True
