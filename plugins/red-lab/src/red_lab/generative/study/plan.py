"""An estimate of the work ahead, and of its time at the speed measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import torch

import redhost
from red_lab.generative.corpora import Part
from red_lab.generative.study.context import PassageTokens, StudyContext
from red_lab.generative.study.seed import MONOLITHS
from red_lab.generative.study.training import domain_losses, untrained

__all__ = ["plan", "work"]

PROBE = 128
"""Tokens with which a speed is measured."""
RESIDUAL = 3
"""Routers evaluated with a head product for each token."""
DOCUMENT = 150
"""Approximate number of tokens of a document that switches its domain."""
CARDS, EVALUATIONS = 2, 3
"""Parts of a card; compositions that are made and evaluated."""


def plan(context: StudyContext, *, seeds: int) -> str:
    """Return lines with the stages ahead and their approximate minutes, nothing cached."""
    planned, speed = work(context, seeds=seeds), _speeds(context)
    minutes = {name: tokens / speed[kind] / 60 for name, (kind, tokens) in planned.items()}
    lines = [
        f"  {name}: {tokens:,} tokens at {speed[kind]:,.0f} a second, {minutes[name]:.1f} minutes"
        for name, (kind, tokens) in planned.items()
    ]
    total = sum(minutes.values())
    return "\n".join([*lines, f"  about {total:.0f} minutes in all, routers not counted"])


def work(context: StudyContext, *, seeds: int) -> dict[str, tuple[str, int]]:
    """Return, by stage, the applicable speed and the number of tokens."""
    s, count = context.setting, len(context.domains)
    sizes: Mapping[Part, int] = s.tokens
    evaluated = sizes["fit"] + sizes["gate"] + sizes["test"]
    switches = count * (count - 1) * s.switches * DOCUMENT
    products = min(seeds, s.products)
    visits = s.epochs * sizes["train"] * count
    cards = CARDS * s.card * (count + 1) + sizes["test"]
    return {
        "states": ("trunk", count * sum(sizes.values()) + s.background),
        "experts": ("training", seeds * visits),
        "early stopping": ("head", seeds * s.epochs * sizes["valid"] * count),
        "log p, base": ("head", count * evaluated),
        "log p, experts": ("head", seeds * count * count * evaluated),
        "residual sums": ("head", seeds * RESIDUAL * count * sizes["test"]),
        "monoliths": ("training", seeds * len(MONOLITHS) * visits),
        "log p, monoliths": ("head", seeds * len(MONOLITHS) * count * sizes["test"]),
        "divergence": ("head", seeds * count * count * s.divergence),
        "switches": ("head", seeds * (count + 1) * switches),
        "product": ("head", products * EVALUATIONS * count * cards),
    }


def _speeds(context: StudyContext) -> dict[str, float]:
    """Return tokens per second of the trunk, of a head product, and of a training step."""
    text = context.texts(context.domains[0], "train")[0]
    h = context.backbone.encode([text])
    trunk = _rate(len(h), lambda: context.backbone.encode([text]))
    h = h.repeat(-(-PROBE // len(h)), 1)[:PROBE]
    tokens = PassageTokens(h=h, target=torch.zeros(PROBE, dtype=torch.int64), lengths=(), sizes=())
    adapter = untrained(context, seed=0).requires_grad_(True)
    return {
        "trunk": trunk,
        "head": _rate(PROBE, lambda: torch.log_softmax(context.logits(h, expert=None), dim=1)),
        "training": _rate(PROBE, lambda: _step(context, adapter, tokens)),
    }


def _step(context: StudyContext, adapter: redhost.Expert, tokens: PassageTokens) -> None:
    loss = domain_losses(context, adapter, [tokens]).sum()
    loss.backward()  # type: ignore[no-untyped-call]


def _rate(tokens: int, do: Callable[[], object]) -> float:
    do()
    start = perf_counter()
    do()
    return tokens / (perf_counter() - start)
