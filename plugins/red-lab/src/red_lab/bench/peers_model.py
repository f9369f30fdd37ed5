"""The floor: a plain transformers model with a classifier on its last token; timing beside it.

Neither redhost nor another library is imported here: each starts from the same folder, in its own
environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from red_lab.bench.rounds import in_pairs, overhead, peak_bytes, share, spread

__all__ = [
    "BATCHES",
    "CLASSIFIER",
    "EXPERTS",
    "IDS",
    "TARGETS",
    "Answers",
    "Pass",
    "compare",
    "floor",
    "load",
    "peak_memory",
    "rank_for",
    "token_ids",
]

CLASSIFIER, IDS = "classifier.safetensors", "ids.json"
EXPERTS = 5
"""Number of experts, or adapters, of every system."""

TARGETS = ("q_proj", "v_proj")
"""The projections that PEFT adapts by default in Llama and Qwen."""


BATCHES = (1, 8, 64)
MOST_RUNS = 3
"""Small batches are fast, so they get this many times the rounds of the largest."""

Pass = Callable[[Tensor], Tensor]
"""Token ids ``(B, T)`` → logits ``(B, C)``."""


class Answers(nn.Module):
    """Trunk, last token, classifier; named like a causal model, since PEFT expects ``model``."""

    def __init__(self, trunk: Any, classifier: Tensor) -> None:
        super().__init__()
        self.model = trunk
        self.config = trunk.config
        self.register_buffer("classifier", classifier)

    classifier: Tensor

    def forward(
        self, input_ids: Tensor, *, output_hidden_states: bool = False, **_: Any
    ) -> SimpleNamespace:
        """Return logits ``(B, C)`` for token ids ``(B, T)``; every block's states on request."""
        out = self.model(input_ids=input_ids, output_hidden_states=output_hidden_states)
        logits = out.last_hidden_state[:, -1] @ self.classifier.T
        return SimpleNamespace(logits=logits, hidden_states=out.hidden_states)


def load(folder: Path) -> Answers:
    """Load the model of a folder: frozen, in eval mode, float32, without a KV cache."""
    from transformers import AutoModel

    auto: Any = AutoModel
    trunk = auto.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    trunk.config.use_cache = False
    answers = Answers(trunk, load_file(folder / CLASSIFIER)["weight"])
    return answers.eval().requires_grad_(False)


def token_ids(folder: Path) -> Tensor:
    """Return the folder's token ids ``(N, T)``."""
    return torch.tensor(json.loads((folder / IDS).read_text("utf-8")))


def rank_for(model: Answers) -> int:
    """Return the rank at which an adapter has approximately as many parameters as an expert.

    An expert of redhost has rank D/4, hence D²/2 parameters.
    """
    shapes = [m.weight.shape for n, m in model.named_modules() if n.endswith(TARGETS)]
    width = int(model.config.hidden_size)
    return max(1, round(width**2 / 2 / sum(sum(shape) for shape in shapes)))


def floor(folder: Path) -> Pass:
    """Return the plain forward pass."""
    model = load(folder)
    return lambda ids: model(input_ids=ids).logits


def compare(
    floor: Pass,
    passes: Mapping[str, Pass],
    ids: Tensor,
    *,
    rounds: int,
    apart: Mapping[str, Pass] | None = None,
    batches: Sequence[int] = BATCHES,
) -> dict[str, Any]:
    """Time systems, each directly after the plain forward pass, batch by batch.

    Args:
        floor: The plain forward pass.
        passes: Whole passes; their overhead is relative to the floor.
        ids: Token ids ``(N, T)``.
        rounds: Number of counted rounds for the largest batch.
        apart: Parts of a pass; their overhead is their own time as a fraction of the floor's.
        batches: Rows of a pass.
    """
    parts = dict(apart or {})
    systems: dict[str, Any] = {name: {} for name in ("floor", *passes, *parts)}
    for batch in batches:
        times = MOST_RUNS if batch < max(batches) else 1
        with torch.inference_mode():
            rows = ids[:batch]
            work = {name: partial(run, rows) for name, run in {**passes, **parts}.items()}
            seconds = in_pairs(partial(floor, rows), work, rounds=times * rounds)
        floors = [took for before, _ in seconds.values() for took in before]
        systems["floor"][str(batch)] = {"seconds": spread(floors)}
        for name, (before, values) in seconds.items():
            beside = share if name in parts else overhead
            systems[name][str(batch)] = {
                "seconds": spread(values),
                "overhead": beside(values, before),
            }
    return {"systems": systems, "threads": torch.get_num_threads(), "tokens": int(ids.shape[1])}


def peak_memory(
    systems: Mapping[str, Callable[[Path], Pass]], *, folder: str, system: str
) -> dict[str, Any]:
    """Build one system and let it answer the largest batch; return the process's peak memory."""
    run = systems[system](Path(folder))
    with torch.inference_mode():
        run(token_ids(Path(folder))[: max(BATCHES)])
    return {"peak_bytes": peak_bytes()}
