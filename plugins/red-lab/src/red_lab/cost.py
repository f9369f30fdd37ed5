"""`redhost lab cost`: time and count a random backbone of full size and the buses on top of it.

Legend for shapes: B batch, T tokens, D model width, N queries, R rank, K columns, C labels.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.bench.rounds import in_turns, peak_bytes
from red_lab.metrics import Metrics, read_metrics, render, write_results
from red_lab.training import built_in_router
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import LowRank
from redhost.core.routers.domain_statistics import Statistics

__all__ = [
    "CLASSES",
    "ROUTERS",
    "Load",
    "build_bus",
    "make_trunk",
    "measure",
    "page",
    "parameters",
    "run",
]

CLASSES = 99
"""C of the seed's additions: the sums 2 to 100."""

ROUTERS = ("evidence", "statistics", "centroid", "linear", "mlp")
"""Kinds of routers that are counted and timed; the first is the host's default."""

ROWS_A_LABEL = 4
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """The settings of a measurement.

    Attributes:
        config: ``qwen3-0.6b``, ``smollm2-135m`` or ``tiny``.
        experts: Number of experts, all of the residual form in hidden space.
        rank: R of each; None is a quarter of D.
        device: ``cpu`` or ``cuda``.
        queries: N, in batches of `batch`.
        batch: B.
        rounds: Timed rounds, after one warm-up round.
    """

    config: str
    experts: int = 5
    rank: int | None = None
    device: str = "cpu"
    queries: int = 64
    batch: int = 8
    rounds: int = 5


def make_trunk(config: str) -> Any:
    """Return a frozen encoder of a shape, with random weights."""
    from transformers import AutoModel, LlamaConfig, Qwen3Config

    from red_lab.tiny_model import Shape, make_model

    if config == "tiny":
        model: Any = make_model(Shape(), seed=0).encoder
    else:
        shapes = {"qwen3-0.6b": (Qwen3Config, QWEN3), "smollm2-135m": (LlamaConfig, SMOLLM2)}
        make, options = shapes[config]
        auto: Any = AutoModel
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = auto.from_config(make(**options, use_cache=False), dtype=torch.float32)
    return model.eval().requires_grad_(False)


def build_bus(kind: str, load: Load, *, width: int) -> redhost.Bus:
    """Return a bus of random experts with a router trained on random rows."""
    generator = torch.Generator().manual_seed(0)
    rank, labels = rank_of(load, width), tuple(str(2 + n) for n in range(CLASSES))
    ids = tuple(f"expert{n}" for n in range(load.experts))
    experts = {
        name: LowRank(
            U=torch.randn(rank, width, generator=generator) / width**0.5,
            V=torch.randn(width, rank, generator=generator) / rank**0.5,
            activation="gelu",
            space="hidden",
            labels=labels[n :: load.experts],
        )
        for n, name in enumerate(ids)
    }
    bus = redhost.Bus(
        Readout(
            classifier=torch.randn(CLASSES, width, generator=generator) / width**0.5, labels=labels
        ),
        norm=LayerNorm(width=width, eps=1e-5),
        router=_router(kind, experts, labels, width=width),
        experts=experts,
        backbone_column=True,
    )
    return bus.eval().requires_grad_(False)


def _router(
    kind: str, experts: Mapping[str, LowRank], labels: Sequence[str], *, width: int
) -> redhost.Router:
    columns = (*experts, "backbone")
    config = redhost.BusConfig(width=width, labels=tuple(labels))
    router = built_in_router(kind, config, columns)
    if router.closed_form:
        answers = {**{i: e.labels for i, e in experts.items()}, "backbone": ("",)}
        router.solve([_column(n, columns, answers[c], width=width) for n, c in enumerate(columns)])
    return router


def _column(
    n: int, columns: Sequence[str], labels: Sequence[str], *, width: int
) -> redhost.plugins.ColumnData:
    """Return random rows of a column; a router's shape depends only on the number of labels."""
    answers = [y for y in labels for _ in range(ROWS_A_LABEL)]
    z = torch.randn(len(answers), width, generator=torch.Generator().manual_seed(n))
    return redhost.plugins.ColumnData(
        column=columns[n],
        z=z,
        statistics=Statistics.of_rows(z, answers),
        signals=redhost.plugins.RouterSignals(z, values={"confidences": z[:, : len(columns)]}),
    )


def rank_of(load: Load, width: int) -> int:
    """Return R, or a quarter of D if none is given."""
    return load.rank or max(1, width // 4)


TOKENS = 12
"""T of a query such as "What is 37 plus 12?" in a large model's tokens."""


def measure(load: Load) -> dict[str, Any]:
    """Count and time a backbone and its buses.

    Raises:
        UsageError: If the device is not available.
    """
    if load.device == "cuda" and not torch.cuda.is_available():
        raise redhost.UsageError("no such device", expected="cpu", found="cuda")
    memory = {"start": peak(load.device)}
    trunk = make_trunk(load.config).to(load.device)
    width = int(trunk.config.hidden_size)
    memory["weights"] = peak(load.device)
    with torch.inference_mode():
        buses = {kind: build_bus(kind, load, width=width).to(load.device) for kind in ROUTERS}
        seconds = _rounds(load, trunk, buses, memory)
    return {
        "config": load.config,
        "device": load.device,
        "width": width,
        "blocks": int(trunk.config.num_hidden_layers),
        "experts": load.experts,
        "rank": rank_of(load, width),
        "queries": load.queries,
        "batch": load.batch,
        "tokens": TOKENS,
        "rounds": load.rounds,
        "threads": torch.get_num_threads(),
        "parameters": _counts(trunk, buses),
        **_summarise(seconds, load),
        "peak_bytes": memory,
        "machine": _machine(load.device),
    }


def _rounds(
    load: Load, trunk: nn.Module, buses: Mapping[str, redhost.Bus], memory: dict[str, int | None]
) -> dict[str, list[float]]:
    """Time all systems in each round, so that noise affects all of them."""
    ids = torch.randint(
        int(trunk.config.vocab_size),  # type: ignore[union-attr, arg-type]
        (load.queries, TOKENS),
        generator=torch.Generator().manual_seed(0),
    ).to(load.device)
    h = torch.cat(_trunk(trunk, ids, load))
    memory["trunk"] = peak(load.device)
    systems: dict[str, Callable[[], object]] = {"trunk": partial(_trunk, trunk, ids, load)}
    if _has_bf16(load.device):
        systems["trunk bf16"] = partial(_trunk, trunk, ids, load, bf16=True)
    for kind, bus in buses.items():
        systems[f"bus {kind}"] = partial(_bus, bus, h, load)
    waited = {name: partial(_waited, work, load.device) for name, work in systems.items()}
    seconds = in_turns(waited, rounds=load.rounds)
    memory["all"] = peak(load.device)
    return seconds


def _trunk(trunk: nn.Module, ids: Tensor, load: Load, *, bf16: bool = False) -> list[Tensor]:
    """Return h, the last token's state, batch by batch: ``(B, D)`` each."""
    precision: AbstractContextManager[object] = nullcontext()
    if bf16:
        precision = torch.autocast(load.device, dtype=torch.bfloat16)
    with precision:
        batches = (ids[n : n + load.batch] for n in range(0, len(ids), load.batch))
        return [trunk(input_ids=part).last_hidden_state[:, -1].float() for part in batches]


def _bus(bus: redhost.Bus, h: Tensor, load: Load) -> list[Tensor]:
    """Return p(y|x), batch by batch: ``(B, C)`` each."""
    return [bus(h[n : n + load.batch])[0] for n in range(0, len(h), load.batch)]


def _waited(work: Callable[[], object], device: str) -> None:
    """Do some work to its end: a GPU answers before it is done."""
    work()
    if device == "cuda":
        torch.cuda.synchronize()


def peak(device: str) -> int | None:
    """Return the peak memory so far in bytes, of the process or of CUDA's allocations."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else peak_bytes()


def parameters(module: nn.Module) -> int:
    """Return the number of parameters, tied ones once."""
    return sum(p.numel() for p in module.parameters())


def _counts(trunk: nn.Module, buses: Mapping[str, redhost.Bus]) -> dict[str, Any]:
    bus = buses[ROUTERS[0]]
    return {
        "trunk": parameters(trunk),
        "classifier": 0 if bus.classifier is None else bus.classifier.numel(),
        "experts": parameters(bus.experts),
        "routers": {kind: parameters(b.router) for kind, b in buses.items()},
    }


def _summarise(seconds: Mapping[str, Sequence[float]], load: Load) -> dict[str, Any]:
    """Return medians per 1,000 queries, and ratios to the trunk, each within its round."""
    thousand = {n: 1000 * statistics.median(v) / load.queries for n, v in seconds.items()}
    return {
        "seconds_per_1000": thousand,
        "times_trunk": {
            name: statistics.median(
                [one / trunk for one, trunk in zip(values, seconds["trunk"], strict=True)]
            )
            for name, values in seconds.items()
        },
    }


def _has_bf16(device: str) -> bool:
    """Return whether the device supports bfloat16 natively, without emulation."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = torch.cpu.get_capabilities()
    return any(bool(known.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"device": name, "cores": os.cpu_count(), "torch": torch.__version__}


def run(measured: dict[str, Any], *, out: Path) -> Path:
    """Add a run's figures to metrics.json, keep those of other shapes, and write the page.

    Args:
        measured: The result of `measure`.
        out: Folder of the results.
    """
    runs = read_metrics(out).get("runs", {})
    runs[f"{measured['config']} {measured['device']}"] = measured
    return write_results({"schema": "red-lab.cost/1", "runs": runs}, out, page=page)


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.cost/1``."""
    runs = sorted(metrics["runs"].values(), key=lambda r: -r["parameters"]["trunk"])
    # Parameters are the same on every device.
    shapes = {(r["config"], r["experts"], r["rank"]): r for r in runs}
    return render("cost", {}, runs=runs, shapes=[*shapes.values()])
