"""The cost of a canary over one generation: split traffic, or a second bus on all texts."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from red_lab.bench.answers.subject import MAX_TOKENS
from red_lab.bench.heads import compose
from red_lab.bench.rounds import in_turns, overhead, spread
from red_lab.newsgroups import encoder, lines
from redhost_serve.trial import Question, Trial

import redhost

__all__ = ["measure"]

HEADS = 10
SIZES = (1, 8, 64)


def measure(*, runs: int) -> dict[str, Any]:
    """Time whole answers of one generation, of a 50 % split, and of one with a mirror; MiniLM.

    Args:
        runs: Rounds of 64 texts; smaller batches get three times as many.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        backbone = redhost.Backbone.load(f"hf:{encoder()}", pooling="mean", max_tokens=MAX_TOKENS)
        first, second = (
            dataclasses.replace(compose(backbone, HEADS), generation=n) for n in (1, 2)
        )
        rows = [_row(first, second, lines()[:n], runs=runs) for n in SIZES]
    finally:
        torch.set_num_threads(threads)
    weights = sum(p.numel() * p.element_size() for p in backbone.trunk.model.parameters())
    held = [*second.bus.parameters(), *second.bus.buffers()]
    memory = sum(t.numel() * t.element_size() for t in held) / weights
    return {"heads": HEADS, "runs": runs, "memory": memory, "rows": rows}


def _row(
    first: redhost.ComposedModel, second: redhost.ComposedModel, texts: list[str], *, runs: int
) -> dict[str, Any]:
    half = [Question(text, canary=n % 2 == 1) for n, text in enumerate(texts)]
    all_ = [Question(text) for text in texts]
    split, mirror = Trial(model=second, share=0.5), Trial(model=second, mirror=True)
    seconds = in_turns(
        {
            "one": lambda: first.answer(texts),
            "split": lambda: split.answer(first, half),
            "mirror": lambda: mirror.answer(first, all_),
            "twice": lambda: (first.answer(texts), second.answer(texts)),
        },
        rounds=runs * (1 if len(texts) == max(SIZES) else 3),
    )
    return {
        "texts": len(texts),
        "seconds": spread(seconds["one"]),
        **{name: overhead(seconds[name], seconds["one"]) for name in ("split", "mirror", "twice")},
    }
