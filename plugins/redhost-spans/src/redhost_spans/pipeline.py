"""Spans as transformers returns them: the pipeline ``token-classification``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from redhost.core.types import as_list
from redhost.registry.errors import UsageError

if TYPE_CHECKING:
    from redhost.core.host import Host

__all__ = ["TokenClassification"]


class TokenClassification:
    """Texts → labelled spans of words, as transformers returns them (``aggregation_strategy``).

    Args:
        host: The host whose current generation answers.

    Raises:
        UsageError: If its backbone does not answer spans.
    """

    task = "token-classification"

    def __init__(self, host: Host) -> None:
        self.host = host
        head = host.composed.bus.task.head
        if "spans" not in head.fields:
            raise UsageError("no such pipeline", expected="a backbone of spans", found=head.noun)

    def __call__(self, inputs: str | Iterable[str]) -> list[Any]:
        """Return the spans of texts.

        Args:
            inputs: One text, or any iterable of texts.

        Returns:
            A list with a dictionary per span, with ``entity_group``, ``score``, ``word``, ``start``
            and ``end``; for several texts, a list of such lists.
        """
        one, texts = isinstance(inputs, str), as_list(inputs, str, "text")
        found = [
            [
                {
                    "entity_group": s.label,
                    "score": s.probability,
                    "word": s.text,
                    "start": s.start,
                    "end": s.end,
                }
                for s in answer.spans or ()
            ]
            for answer in self.host.composed.answer(texts)
        ]
        return found[0] if one else found
