"""Section `decode`: the overhead of experts and a causal router in a step of generation.

A step is one token: the trunk with its KV cache, and the product with the head. Systems take turns,
token by token, each with a separate cache, so contexts grow alike. The experts' weights are random,
since times depend on shapes alone; the backbones are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import redhost_generate
import torch
from redhost_generate.decode import DecodingSession
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import redhost
from red_lab.bench.bus import tensor_bytes
from red_lab.bench.in_memory import in_memory
from red_lab.bench.rounds import in_turns, overhead, spread
from red_lab.bench.section import SectionSettings
from red_lab.bench.trunks import TRUNKS, open_trunk
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import LowRank
from redhost.core.model.build import make_router

__all__ = ["TITLE", "compose", "measure", "measure_on", "page"]

TITLE = "Overhead per generated token"

CONTEXTS = (32, 256)
SYSTEMS = (("causal", 1), ("causal", 4), ("causal", 16), ("robust", 4))
TARGET, AIMED = 0.05, ("causal", 4)
"""Target: overhead of this system over a step of SmolLM2."""

STEPS = 3
"""Measured tokens per round."""

TOKEN = 7
"""The input token; its value does not matter."""


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Time the systems on every backbone."""
    rounds = STEPS * settings.runs
    found = {name: measure_on(open_trunk(name), rounds=rounds) for name in TRUNKS}
    return {"rounds": rounds, "threads": torch.get_num_threads(), "backbones": found}


def measure_on(
    trunk: redhost.authoring.TextEncoder,
    *,
    rounds: int,
    systems: Sequence[tuple[str, int]] = SYSTEMS,
    contexts: Sequence[int] = CONTEXTS,
) -> dict[str, Any]:
    """Time systems on one backbone.

    Args:
        trunk: The backbone; its head is its embedding.
        rounds: Number of measured steps.
        systems: Kinds of router and numbers of experts.
        contexts: Numbers of tokens before the first step.
    """
    made = {(kind, experts): compose(trunk, kind, experts) for kind, experts in systems}
    head = _head(trunk)
    rows = [row for n in contexts for row in _timed(trunk, made, context=n, rounds=rounds)]
    return {"width": trunk.width, "vocabulary": len(head), "rows": rows}


def compose(trunk: redhost.authoring.TextEncoder, kind: str, experts: int) -> redhost.ComposedModel:
    """Return a composition of random experts, a quarter of the width in rank, with even weights."""
    width, rank, head = trunk.width, max(1, trunk.width // 4), _head(trunk)
    generator = torch.Generator().manual_seed(0)
    parts = {
        f"expert{n:02d}": LowRank(
            U=torch.randn(rank, width, generator=generator) / width**0.5,
            V=torch.randn(width, rank, generator=generator) / rank**0.5,
            activation="gelu",
            space="hidden",
        )
        for n in range(experts)
    }
    plugins = redhost.plugins.Plugins()
    backbone = redhost.Backbone(
        trunk=trunk,
        classifier=head,
        task=plugins.task("generation"),
        layout=redhost_generate.context_layout(width),
    )
    router = make_router(
        kind,
        bus=backbone.bus_config(),
        columns=(*parts, "backbone"),
        seed=0,
        plugins=plugins,
        providers={},
    )
    bus = redhost.Bus(
        Readout(classifier=head, task=backbone.task),
        norm=LayerNorm(width=width, eps=backbone.eps),
        router=router,
        experts=parts,
        backbone_column=True,
        layout=backbone.layout,
    )
    return in_memory(backbone, bus, kind=kind)


def _timed(
    trunk: redhost.authoring.TextEncoder,
    made: Mapping[tuple[str, int], redhost.ComposedModel],
    *,
    context: int,
    rounds: int,
) -> Iterator[dict[str, Any]]:
    """Yield one row for every system at one context."""
    ids = [TOKEN + n % 50 for n in range(context)]
    steps = {f"{kind} {n}": _bus_step(c, ids) for (kind, n), c in made.items()}
    alone = _backbone_step(trunk, ids)
    floor = _peak(alone)
    seconds = in_turns({"backbone": alone, **steps}, rounds=rounds)
    for (kind, n), composed in made.items():
        took, step = seconds[f"{kind} {n}"], steps[f"{kind} {n}"]
        yield {
            "context": context,
            "router": kind,
            "experts": n,
            "backbone_seconds": spread(seconds["backbone"]),
            "seconds": spread(took),
            "overhead": overhead(took, seconds["backbone"]),
            "kept_bytes": tensor_bytes(composed.bus) - _bytes(_head(trunk)),
            "step_bytes": _peak(step) - floor,
        }


def _bus_step(composed: redhost.ComposedModel, ids: list[int]) -> Callable[[], Tensor]:
    """Return a function that decodes one more token with experts."""
    session = DecodingSession(composed)
    session.step(ids)
    return lambda: session.step([TOKEN])[0]


def _backbone_step(trunk: redhost.authoring.TextEncoder, ids: list[int]) -> Callable[[], Tensor]:
    """Return a function that decodes one more token with the backbone alone, head included."""
    head, cache = _head(trunk), None

    @torch.inference_mode()
    def step(tokens: list[int]) -> Tensor:
        nonlocal cache
        h, cache = trunk.decode_step(torch.tensor([tokens]), cache)
        return h[0, -1:] @ head.T

    step(ids)
    return partial(step, [TOKEN])


def _peak(step: Callable[[], object]) -> int:
    """Return the peak of bytes that one step allocates."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    held = peak = 0
    for event in profiler.events() or ():
        held += event.self_cpu_memory_usage
        peak = max(peak, held)
    return peak


def _head(trunk: redhost.authoring.TextEncoder) -> Tensor:
    """Return the embedding, which both backbones also use as their output head."""
    embedding: Any = trunk.model.get_input_embeddings()
    weight: Tensor = embedding.weight.detach()
    return weight


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    lines = [
        "A step of generation by the backbone alone (with KV cache and the product with the head) "
        "is compared with a step through the bus with its causal state, in turn, token by token, "
        "at batch 1. `causal` sums residuals and computes one product with the head; `robust` "
        "mixes distributions and computes one product for every column. Overheads are medians "
        f"over rounds of the ratio, with quartiles. Threads: {found['threads']}. Experts are "
        "random, with a quarter of the width as rank. Memory: the tensors of the bus without the "
        "head, and the peak of one step beyond that of the backbone.",
    ]
    for name, measured in found["backbones"].items():
        lines += ["", *_table(name, measured)]
    return "\n".join([*lines, "", *_aims(found)])


def _table(name: str, measured: Mapping[str, Any]) -> Iterator[str]:
    contexts = sorted({r["context"] for r in measured["rows"]})
    cells = {(r["router"], r["experts"], r["context"]): r for r in measured["rows"]}
    floors = ", ".join(
        f"{1000 * _floor(measured, n)['median']:.1f} ms after {n} tokens" for n in contexts
    )
    size = f"D {measured['width']}, V {measured['vocabulary']:,}"
    yield f"**{name}** ({size}): the backbone's step takes"
    yield f"{floors}."
    yield ""
    heads = " | ".join(f"after {n} tokens" for n in contexts)
    yield f"| router | experts | {heads} | memory: bus | memory: step |"
    yield "|---" * (4 + len(contexts)) + "|"
    for router, experts in dict.fromkeys((r["router"], r["experts"]) for r in measured["rows"]):
        row = [cells[router, experts, n] for n in contexts]
        shares = " | ".join(_share(r["overhead"]) for r in row)
        memory = " | ".join(f"{row[0][k] / 2**20:.2f} MiB" for k in ("kept_bytes", "step_bytes"))
        yield f"| `{router}` | {experts} | {shares} | {memory} |"


def _floor(measured: Mapping[str, Any], context: int) -> Mapping[str, float]:
    return next(r["backbone_seconds"] for r in measured["rows"] if r["context"] == context)


def _aims(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each context whether the target is met."""
    for row in (
        r
        for name, measured in found["backbones"].items()
        for r in measured["rows"]
        if name == "smollm2" and (r["router"], r["experts"]) == AIMED
    ):
        ratio = row["overhead"]["ratio"]
        answer = "met" if ratio <= TARGET else "**missed**"
        yield (
            f"- Four experts on SmolLM2 after {row['context']} tokens: {ratio:+.1%}, "
            f"the target is {TARGET:.0%}: {answer}."
        )


def _share(overhead: Mapping[str, float]) -> str:
    return f"{overhead['ratio']:+.1%} ({overhead['low']:+.1%} to {overhead['high']:+.1%})"
