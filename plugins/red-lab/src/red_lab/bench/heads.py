"""Section `heads`: every expert's own answer in one pass, as with one head per task.

Heads are random, since the cost does not depend on their answers. The encoder is MiniLM, the texts
are lines of dialogue, one thread.
"""

from __future__ import annotations

from typing import Any

import torch

import redhost
from red_lab.bench import Section, SectionSettings
from red_lab.bench.answers.subject import MAX_TOKENS
from red_lab.bench.rounds import in_turns, overhead, spread
from red_lab.models import in_memory
from red_lab.newsgroups import encoder, lines
from red_lab.training import built_in_router, one_thread
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import Linear

__all__ = ["SECTION", "compose"]

HEADS, LABELS = (1, 10, 100), 10
SIZES = (1, 8, 64)


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Time the encoder alone, the composed answer, and the answer with every expert's own."""
    with one_thread():
        backbone = redhost.Backbone.load(f"hf:{encoder()}", pooling="mean", max_tokens=MAX_TOKENS)
        texts = lines()[: max(SIZES)]
        rows = [_row(backbone, heads, texts[:n], settings) for heads in HEADS for n in SIZES]
    return {"labels": LABELS, "runs": settings.runs, "rows": rows}


def compose(backbone: redhost.Backbone, heads: int) -> redhost.ComposedModel:
    """Return a composition of random heads with labels of their own, always the same first ones."""
    experts = {f"head{n:03d}": _head(n, backbone.width) for n in range(heads)}
    columns = (*experts, "backbone")
    router = built_in_router("linear", backbone.bus_config(), columns)
    bus = redhost.Bus(
        Readout(),
        norm=LayerNorm(width=backbone.width, eps=backbone.eps),
        router=router,
        experts=experts,
        backbone_column=True,
    )
    return in_memory(backbone, bus, kind="linear")


def _head(n: int, width: int) -> redhost.Expert:
    generator = torch.Generator().manual_seed(n)
    return Linear(
        W=torch.randn(LABELS, width, generator=generator) / width**0.5,
        b=torch.zeros(LABELS),
        space="labels",
        labels=[f"head{n:03d} {y}" for y in range(LABELS)],
    )


def _row(
    backbone: redhost.Backbone, heads: int, texts: list[str], settings: SectionSettings
) -> dict[str, Any]:
    """Return what a number of heads cost on a number of texts, and whether each is as if alone."""
    model = compose(backbone, heads)
    alone = [(a.by_expert or {})["head000"] for a in compose(backbone, 1).answer(texts, each=True)]
    first = [(a.by_expert or {})["head000"] for a in model.answer(texts, each=True)]
    seconds = in_turns(
        {
            "encoder": lambda: backbone.encode(texts),
            "by_hand": lambda: _by_hand(model, backbone.encode(texts)),
            "composed": lambda: model.answer(texts),
            "each": lambda: model.answer(texts, each=True),
        },
        rounds=settings.runs * (3 if len(texts) == max(SIZES) else 10),
    )
    weights = sum(p.numel() * p.element_size() for p in backbone.trunk.model.parameters())
    held = [*model.bus.parameters(), *model.bus.buffers()]  # copies included
    return {
        "heads": heads,
        "texts": len(texts),
        "encoder_seconds": spread(seconds["encoder"]),
        "by_hand": overhead(seconds["by_hand"], seconds["encoder"]),
        "composed": overhead(seconds["composed"], seconds["encoder"]),
        "each": overhead(seconds["each"], seconds["encoder"]),
        "memory": sum(t.numel() * t.element_size() for t in held) / weights,
        "as_if_alone": first == alone,
    }


@torch.inference_mode()
def _by_hand(model: redhost.ComposedModel, h: torch.Tensor) -> list[list[int]]:
    """Return what a team writes that has a head per task and no host: one product, one maximum."""
    heads = [e for e in model.bus.parts() if isinstance(e, Linear)]
    weight, bias = torch.cat([e.W for e in heads]), torch.cat([e.b for e in heads])
    logits = torch.nn.functional.linear(model.bus.norm(h), weight, bias)
    best: list[list[int]] = logits.view(len(h), len(heads), -1).softmax(-1).argmax(-1).tolist()
    return best


SECTION = Section(name="heads", measure=measure)
