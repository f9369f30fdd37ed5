"""The output type of ``redhost generate --json``.

Only type checkers and the reference import this module: the command builds a plain dictionary.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from redhost_generate.decode import Token

__all__ = ["Generated"]


class Generated(TypedDict):
    """A text and its continuation.

    Attributes:
        prompt: The given text.
        text: The added text.
        generation: The generation that wrote it.
        seed: The random seed.
        temperature: The given temperature.
        sampling: The other settings of `Sampling`.
        tokens: The number of added tokens.
        weights: Mean α over the tokens, by column.
        complete: Whether the text is complete JSON, with ``--json-schema``.
        table: Each token, with ``--explain``.
    """

    prompt: str
    text: str
    generation: int | None
    seed: int
    temperature: float
    sampling: dict[str, float]
    tokens: int
    weights: dict[str, float]
    complete: NotRequired[bool]
    table: NotRequired[list[Token]]
