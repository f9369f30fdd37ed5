"""The server's Prometheus metrics, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import redhost
from redhost_serve.drift import Drift

__all__ = ["Metrics"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)

COUNTERS = (
    ("requests", "Requests answered.", ("route", "status")),
    ("swaps", "Changes of generation.", ("outcome",)),
    ("generation_texts", "Texts answered, by the generation that did.", ("generation",)),
    (
        "labelled_texts",
        "Texts whose right label came back, by generation, and whether it had it right.",
        ("generation", "outcome"),
    ),
    ("expert_texts", "Texts whose largest weight an expert had.", ("expert",)),
    ("expert_weight", "Sum of an expert's weights over all texts.", ("expert",)),
    (
        "expert_declined",
        "Texts whose largest weight an expert had, and that were declined.",
        ("expert",),
    ),
)

ESTIMATES = (
    ("live_share", "Estimated share of the last texts that are an expert's, from the weights."),
    ("drift", "Distance of an expert's last texts from its card's rows, in standard deviations."),
)


class Metrics:
    """Counters of one question of a server.

    Args:
        generation: Returns the served generation; None for none.
        alive: Returns the served generations still in memory.
        waiting: Returns the number of waiting requests.
        shares: Returns the experts' shares of the texts.
        drift: Returns the distance of the texts from the cards' rows, by expert.
        question: The named question that is answered; None for the default question.
    """

    def __init__(
        self,
        *,
        generation: Callable[[], int | None],
        alive: Callable[[], Sequence[int]],
        waiting: Callable[[], int],
        shares: Callable[[], Mapping[str, float]],
        drift: Callable[[], Mapping[str, Drift]],
        question: str | None = None,
    ) -> None:
        self._shares, self._drift, self.question = shares, drift, question
        self.registry = CollectorRegistry()
        counted = {
            name: Counter(f"redhost_{name}", what, labels, registry=self.registry)
            for name, what, labels in COUNTERS
        }
        self.requests, self.swaps = counted["requests"], counted["swaps"]
        self.by_generation, self.labelled = counted["generation_texts"], counted["labelled_texts"]
        self.seconds = Histogram(
            "redhost_request_seconds",
            "Seconds from a request's first byte to its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch = Histogram(
            "redhost_batch_texts", "Texts of a batch.", buckets=TEXTS, registry=self.registry
        )
        self.texts, self.weight = counted["expert_texts"], counted["expert_weight"]
        self.declined = counted["expert_declined"]
        self.expert_seconds = Histogram(
            "redhost_expert_seconds",
            "Seconds in the queue and the pass, of texts whose largest weight an expert had.",
            ["expert"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.share, self.drift = (
            Gauge(f"redhost_{name}", what, ["expert"], registry=self.registry)
            for name, what in ESTIMATES
        )
        for name, what, read in (
            ("generation", "The generation served; 0 for none.", lambda: generation() or 0),
            ("generations_alive", "Served generations in memory.", lambda: len(alive())),
            ("queue_requests", "Requests that wait.", waiting),
        ):
            Gauge(f"redhost_{name}", what, registry=self.registry).set_function(read)

    def answered(self, answers: Sequence[redhost.Answer], *, seconds: float) -> None:
        """Count the answers to one request by expert.

        Args:
            answers: The answers.
            seconds: How long the request waited for them.
        """
        self.by_generation.labels(str(answers[0].generation)).inc(len(answers))
        for answer in answers:
            heaviest = max(answer.weights, key=answer.weights.__getitem__)
            self.texts.labels(heaviest).inc()
            self.declined.labels(heaviest).inc(answer.declined)
            self.expert_seconds.labels(heaviest).observe(seconds)
            for column, weight in answer.weights.items():
                if weight:
                    self.weight.labels(column).inc(weight)

    def text(self, beside: Sequence[Metrics] = ()) -> bytes:
        """Return all metrics in Prometheus' text format.

        Args:
            beside: The metrics of other questions to include.
        """
        registry = CollectorRegistry()
        registry.register(_Together((self, *beside)))
        return generate_latest(registry)

    def families(self) -> Iterator[Metric]:
        """Yield all metrics; those of a named question have the label ``question``."""
        self.share.clear()
        for expert, share in self._shares().items():
            self.share.labels(expert).set(share)
        self.drift.clear()
        for expert, drift in self._drift().items():
            self.drift.labels(expert).set(drift.distance)
        own = {} if self.question is None else {"question": self.question}
        for family in self.registry.collect():
            family.samples = [s._replace(labels={**s.labels, **own}) for s in family.samples]
            yield family


class _Together(Collector):
    """Metrics of several questions, grouped by name as the format requires."""

    def __init__(self, counted: Sequence[Metrics]) -> None:
        self.counted = counted

    def collect(self) -> Iterable[Metric]:
        """Return each family once."""
        found: dict[str, Metric] = {}
        for family in (f for metrics in self.counted for f in metrics.families()):
            if family.name in found:
                found[family.name].samples += family.samples
            else:
                found[family.name] = family
        return found.values()
