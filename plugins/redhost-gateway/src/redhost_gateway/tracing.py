"""What a request's span says about its choice, and the headers that continue it at the upstream.

The spans of the requests themselves come from OpenTelemetry's instrumentation of Starlette, e.g. by
``opentelemetry-instrument redhost gateway``.
"""

from __future__ import annotations

from redhost_gateway.choosing import Chosen

try:
    from opentelemetry import propagate, trace
except ImportError:
    propagate = trace = None

__all__ = ["note_choice", "trace_headers"]


def note_choice(chosen: Chosen) -> None:
    """Record a choice on the current span; nothing of the request's texts is recorded."""
    if trace is None or not (span := trace.get_current_span()).is_recording():
        return
    span.set_attribute("redhost.generation", chosen.generation)
    span.set_attribute("redhost.experts", [chosen.expert])
    span.set_attribute("redhost.declined", chosen.declined)


def trace_headers() -> dict[str, str]:
    """Return the headers that make the upstream's span a child of the current one."""
    found: dict[str, str] = {}
    if propagate is not None and trace is not None and trace.get_current_span().is_recording():
        propagate.inject(found)
    return found
