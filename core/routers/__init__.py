"""Router kinds: z → logits over the columns. One kind a file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import partial

from ...registry.errors import UsageError
from ...registry.package.rules import TEMPERATURE
from ..bus.bus import BusConfig
from .base import AnswerLikelihoods, ColumnData, Router
from .centroid import CentroidRouter
from .evidence import EvidenceRouter
from .linear import LinearRouter
from .mlp import MlpRouter
from .options import parse_kind, read_options
from .quadratic import QuadraticRouter
from .statistics import StatisticsRouter
from .topk import HardRouter, TopKRouter

__all__ = [
    "KINDS",
    "AnswerLikelihoods",
    "CentroidRouter",
    "ColumnData",
    "EvidenceRouter",
    "HardRouter",
    "LinearRouter",
    "MlpRouter",
    "QuadraticRouter",
    "Router",
    "StatisticsRouter",
    "TopKRouter",
    "build_router",
    "find_kinds",
    "router_factory",
]


def find_kinds() -> Iterator[type[Router]]:
    """Yield the kinds: every class with a `kind` in a file of this folder."""
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f".{file.name}", __name__)
        for member in vars(module).values():
            if isinstance(member, type) and issubclass(member, Router) and "kind" in vars(member):
                yield member


KINDS: tuple[type[Router], ...] = tuple(sorted(set(find_kinds()), key=lambda c: c.__name__))
"""Every built-in kind; adding a file to this folder adds its kind."""


def build_router(kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int) -> Router | None:
    """Build an untrained router of a built-in kind; return None for an unknown kind.

    Args:
        kind: The kind, with options after a colon: ``topk:k=2,noise=0.1``. Every kind has
            ``temperature``, which divides its logits after training.
        bus: The configuration of its bus.
        columns: The columns' names.
        seed: The seed of random initial weights.

    Raises:
        UsageError: If the kind lacks an option, or an option's value is not allowed.
    """
    name, _ = parse_kind(kind)
    candidate = next((k for k in KINDS if k.kind == name), None)
    return _configure(candidate, kind, bus, columns, seed) if candidate else None


def router_factory(router: type[Router]) -> Callable[..., Router]:
    """Return the factory of a kind, for `redhost_register_routers`: it reads the kind's options."""
    return partial(_configure, router)


def _configure(
    router: type[Router], kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int
) -> Router:
    """Make a router with the options that its kind names."""
    name, given = parse_kind(kind)
    options = read_options(name, given, {**router.options, "temperature": float})
    temperature = options.pop("temperature", 1.0)
    if not 1 / TEMPERATURE <= temperature <= TEMPERATURE:
        raise UsageError(
            f"option 'temperature' of router {name!r}",
            expected=f"between {1 / TEMPERATURE:g} and {TEMPERATURE:g}",
            found=f"{temperature:g}",
        )
    configured = router(width=bus.router_width, columns=columns, seed=seed, **options)
    configured.temperature = temperature
    return configured
