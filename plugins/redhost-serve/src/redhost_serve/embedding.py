"""The backbone's vectors of texts, for those who search and cluster with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import redhost

__all__ = ["Embedding", "embed"]


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """What a text is to the backbone.

    Attributes:
        vector: h, D numbers: what every expert reads, before the bus normalises it.
        tokens: How many tokens of the text were read.
        generation: The generation whose backbone it is.
    """

    vector: list[float]
    tokens: int
    generation: int | None


def embed(model: redhost.ComposedModel, texts: Sequence[str]) -> list[Embedding]:
    """Return the vectors of texts, one by one in the order given.

    Args:
        model: The generation; what its experts read beside h is not computed.
        texts: The texts.

    Raises:
        UsageError: If the backbone has a vector for each word or token instead.
    """
    backbone = replace(model.backbone, layout=None)
    unit = backbone.task.unit
    if unit.value != "text":
        raise redhost.UsageError(
            f"backbone {backbone.name!r} {unit.does} and has no vector of a whole text",
            expected="a backbone that answers whole texts",
            found=backbone.task.name,
        )
    rows = zip(backbone.encode(texts).tolist(), backbone.token_counts(texts), strict=True)
    return [Embedding(vector=h, tokens=n, generation=model.generation) for h, n in rows]
