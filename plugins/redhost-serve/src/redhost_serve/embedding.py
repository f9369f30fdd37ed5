"""The backbone's vectors of texts, for search and clustering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import redhost

__all__ = ["Embedding", "embed"]


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The backbone's vector of a text.

    Attributes:
        vector: h, D numbers: the experts' common input, before the bus normalises it.
        tokens: Number of tokens of the text that were read.
        generation: The generation whose backbone it is.
    """

    vector: list[float]
    tokens: int
    generation: int | None


def embed(model: redhost.ComposedModel, texts: Sequence[str]) -> list[Embedding]:
    """Return the vectors of texts, one by one in the order given.

    Args:
        model: The generation; further inputs of its experts are not computed.
        texts: The texts.

    Raises:
        UsageError: If the backbone returns a vector for each word or token instead.
    """
    backbone = replace(model.backbone, layout=None)
    unit = backbone.task.unit
    if not unit.whole:
        raise redhost.UsageError(
            f"backbone {backbone.name!r} {unit.does} and has no vector of a whole text",
            expected="a backbone that answers whole texts",
            found=backbone.task.name,
        )
    rows = zip(backbone.encode(texts).tolist(), backbone.token_counts(texts), strict=True)
    return [Embedding(vector=h, tokens=n, generation=model.generation) for h, n in rows]
