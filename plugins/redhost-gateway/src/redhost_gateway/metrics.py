"""The gateway's Prometheus metrics, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from redhost_gateway.choosing import Chosen
from redhost_gateway.upstream import Upstream

__all__ = ["Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Metrics:
    """Counters of a gateway.

    Args:
        generation: Returns the generation that chooses; None for none.
        in_progress: Returns the number of requests in progress.
        absent: Returns the number of columns that no upstream can answer with.
        upstreams: The upstreams.
    """

    def __init__(
        self,
        *,
        generation: Callable[[], int | None],
        in_progress: Callable[[], int],
        absent: Callable[[], int],
        upstreams: Sequence[Upstream],
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "redhost_gateway_requests",
            "Requests answered; upstream is 'none' for answers of the gateway's own.",
            ["upstream", "status"],
            registry=registry,
        )
        self.retries = Counter(
            "redhost_gateway_retries", "Requests sent again.", ["upstream"], registry=registry
        )
        self.broken = Counter(
            "redhost_gateway_broken",
            "Answers that an upstream broke off after the first byte.",
            ["upstream"],
            registry=registry,
        )
        self.experts = Counter(
            "redhost_gateway_expert_requests", "Requests by expert.", ["expert"], registry=registry
        )
        self.choice, self.first = (
            Histogram(f"redhost_gateway_{name}_seconds", what, buckets=SECONDS, registry=registry)
            for name, what in (
                ("choice", "Seconds until the expert was chosen."),
                ("first_byte", "Seconds from a request to the head of its answer."),
            )
        )
        for name, what, read in (
            ("generation", "The generation that chooses; 0 for none.", lambda: generation() or 0),
            ("in_progress", "Requests in progress.", in_progress),
            ("absent_experts", "Columns that no upstream can answer with.", absent),
        ):
            gauge = Gauge(f"redhost_gateway_{name}", what, registry=registry)
            gauge.set_function(read)
        up = Gauge(
            "redhost_gateway_up", "Whether an upstream answers.", ["upstream"], registry=registry
        )
        for upstream in upstreams:
            up.labels(upstream.url).set_function(partial(_health, upstream))

    def chosen(self, chosen: Chosen, *, seconds: float) -> None:
        """Count a choice."""
        self.experts.labels(chosen.expert).inc()
        self.choice.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _health(upstream: Upstream) -> float:
    return float(upstream.healthy)
