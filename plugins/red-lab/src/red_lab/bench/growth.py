"""Section `growth`: how the cost of solving a router, of a query and of a card's sums grows.

One size is varied at a time: experts, labels, the width of h. Cards and weights are random,
since times and bytes depend on shapes alone. The router is `ridge`, the default for wide features,
and experts are linear: every expert gets a weight, so a query evaluates all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from statistics import linear_regression
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.bench import Section, SectionSettings
from red_lab.bench.rounds import in_turns, spread
from red_lab.training import built_in_router
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import Linear
from redhost.core.routers.domain_statistics import Statistics

__all__ = ["AXES", "SECTION", "Shape", "exponent", "measure_shape"]

SHOWN, ROWS = 32, 1000
"""Rows in a card; rows to sum or to answer."""

LAST = 3
"""Number of largest points to which an exponent is fitted."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a composition: experts, labels of each, width of h."""

    experts: int = 10
    labels: int = 4
    width: int = 384


AXES: Mapping[str, Sequence[Shape]] = {
    "experts": [Shape(experts=n) for n in (1, 10, 100, 1000)],
    "labels": [Shape(labels=n) for n in (1, 10, 100, 1000)],
    "width": [Shape(width=n) for n in (128, 256, 512, 1024, 2048, 4096)],
}
"""Shapes by axis; labels are those of each of ten experts."""


class _Made:
    """A composition of a given shape.

    Args:
        shape: Its sizes.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.generator = torch.Generator().manual_seed(0)
        self.ids = tuple(f"e{k:04}" for k in range(shape.experts))

    def rows(self, count: int) -> Tensor:
        """Return bus vectors ``(count, D)``."""
        return torch.randn(count, self.shape.width, generator=self.generator)

    def answers(self, count: int) -> tuple[str, ...]:
        """Return labels for so many rows, cycling through the labels."""
        return tuple(f"y{n % self.shape.labels}" for n in range(count))

    @cached_property
    def columns(self) -> list[redhost.plugins.ColumnData]:
        """The router's training data for each expert."""
        count = max(SHOWN, 2 * self.shape.labels)
        labels, z = self.answers(count), {name: self.rows(count) for name in self.ids}
        return [
            redhost.plugins.ColumnData(
                column=name,
                z=z[name][:SHOWN],
                statistics=Statistics.of_rows(z[name], labels),
                labels=labels[:SHOWN],
            )
            for name in self.ids
        ]

    @cached_property
    def bus(self) -> redhost.Bus:
        """Experts under a solved router."""
        shape = self.shape
        labels = [f"y{n}" for n in range(shape.labels)]
        experts: dict[str, redhost.Expert] = {
            name: Linear(
                W=self.rows(shape.labels),
                b=torch.zeros(shape.labels),
                space="labels",
                labels=tuple(f"{name} {y}" for y in labels),
            )
            for name in self.ids
        }
        made = redhost.Bus(
            Readout(),
            norm=LayerNorm(width=shape.width, eps=1e-5),
            router=self.solved(),
            experts=experts,
        )
        return made.eval().requires_grad_(False)

    def solved(self) -> redhost.Router:
        """Return a router that is solved from the columns."""
        config = redhost.BusConfig(width=self.shape.width, labels=())
        router = built_in_router("ridge", config, self.ids)
        router.solve(self.columns)
        return router


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Measure every shape of every axis."""
    axes = {
        axis: [
            {"at": getattr(shape, axis), **measure_shape(shape, rounds=settings.runs)}
            for shape in shapes
        ]
        for axis, shapes in AXES.items()
    }
    return {
        "runs": settings.runs,
        "threads": torch.get_num_threads(),
        "base": {**asdict(Shape()), "rows": ROWS},
        "axes": axes,
    }


def measure_shape(shape: Shape, *, rounds: int) -> dict[str, Any]:
    """Time a composition of a shape.

    Args:
        shape: Its sizes.
        rounds: Number of measured rounds, after one warm-up.
    """
    made = _Made(shape)
    bus, rows, labels = made.bus, made.rows(ROWS), made.answers(ROWS)
    systems: dict[str, Callable[[], object]] = {
        "solve": made.solved,
        "query": partial(bus, rows[:1]),
        "sums": partial(Statistics.of_rows, rows, labels),
        "answer": partial(bus, rows),
    }
    with torch.inference_mode():
        seconds = in_turns(systems, rounds=rounds)
    card = made.columns[0].statistics
    width, labels_of = shape.width, len(card.labels)
    return {
        **{name: spread(took) for name, took in seconds.items()},
        "bytes": _bytes(bus),
        "card": 4 * (labels_of * (width + 1) + width * (width + 1) // 2),  # a packed triangle
    }


def _bytes(module: nn.Module) -> int:
    """Return the bytes of parameters and buffers; shared ones are counted once."""
    tensors = (*module.parameters(), *module.buffers())
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(s.nbytes() for s in storages.values())


def exponent(points: Sequence[Mapping[str, Any]], cost: str) -> float:
    """Return the slope of log cost over log size, through the largest points.

    Args:
        points: Measurements with their sizes under ``at``, ascending.
        cost: Name of a number of each point, or of a spread with its median.
    """
    largest = points[-LAST:]
    costs = (p[cost]["median"] if isinstance(p[cost], Mapping) else p[cost] for p in largest)
    sizes = [math.log(p["at"]) for p in largest]
    return linear_regression(sizes, [math.log(taken) for taken in costs]).slope


SECTION = Section(name="growth", measure=measure, names={"exponent": exponent, "last": LAST})
