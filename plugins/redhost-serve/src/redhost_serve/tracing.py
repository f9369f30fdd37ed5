"""Attributes of a request's span that describe its answer, if OpenTelemetry is installed and on.

The spans of the requests themselves come from OpenTelemetry's instrumentation of FastAPI, e.g. by
``opentelemetry-instrument redhost serve``.
"""

from __future__ import annotations

from collections.abc import Sequence

import redhost

try:
    from opentelemetry import trace
except ImportError:
    trace = None

__all__ = ["note_answers"]


def note_answers(answers: Sequence[redhost.Answer], *, question: str | None = None) -> None:
    """Record on the current span which generation answered, and the experts with most weight.

    Args:
        answers: The answers to one request; their texts and labels are not recorded.
        question: The named question that they answer.
    """
    if trace is None or not (span := trace.get_current_span()).is_recording():
        return
    span.set_attribute("redhost.generation", answers[0].generation or 0)
    span.set_attribute("redhost.texts", len(answers))
    if question is not None:
        span.set_attribute("redhost.question", question)
    heaviest = {max(a.weights, key=a.weights.__getitem__) for a in answers}
    span.set_attribute("redhost.experts", sorted(heaviest))
