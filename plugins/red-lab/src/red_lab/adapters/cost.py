"""Time of a pass with a chosen adapter, compared with PEFT.

Systems take turns, round by round: on a busy machine only ratios within a round are meaningful.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from redhost_peft.lora import Lora
from redhost_peft.lora_run import fresh_adapter
from redhost_peft.rows import encode_with_states, moved_together
from torch import Tensor

from red_lab.adapters import training
from red_lab.adapters.passes import expert_of, files_of, in_peft
from red_lab.adapters.study import Study
from red_lab.bench.rounds import in_turns, times

__all__ = ["measure_cost"]

BATCHES: Mapping[int, int] = {1: 3, 8: 1, 64: 1}
"""Batch size → rounds for each requested round; small batches are repeated."""

TOKENS = 16
"""Tokens of a text."""


def measure_cost(opened: Study, *, runs: int) -> dict[str, Any]:
    """Time passes of the backbone, with one adapter, with one for each text, and PEFT's.

    Args:
        opened: The study.
        runs: Number of rounds.
    """
    return {
        "threads": torch.get_num_threads(),
        "tokens": TOKENS,
        "passes": {str(n): _passes(opened, n, rounds=k * runs) for n, k in BATCHES.items()},
    }


def _passes(opened: Study, batch: int, *, rounds: int) -> dict[str, Any]:
    bare, names = opened.context.backbone, list(opened.adapters)
    trunk, texts = bare.trunk, _texts(opened, batch)
    half = [expert_of(files_of(p)).intervention(bare) for p in opened.adapters.values()]
    whole = expert_of(fresh_adapter(bare, blocks=training.LAYERS)).intervention(bare)

    def ours(acts: Sequence[Lora]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            _, states = encode_with_states(trunk, texts, acts)
            return moved_together(trunk, texts, acts, states)

        return run

    ids = torch.tensor([trunk.tokens(t) for t in texts])
    peft = in_peft(training.language_model()[0], opened.adapters)
    mixed = [names[n % len(names)] for n in range(batch)]
    systems: dict[str, Callable[[], object]] = {
        "backbone": partial(trunk.encode, texts),
        "top half": ours([half[0]] * batch),
        "all blocks": ours([whole] * batch),
        "different": ours([half[n % len(half)] for n in range(batch)]),
        "transformers": partial(_forward, training.language_model()[0], ids),
        "PEFT, named": partial(_forward, peft, ids),
        "PEFT, mixed batch": partial(_forward, peft, ids, adapter_names=mixed),
    }
    seconds = in_turns(systems, rounds=rounds)
    floors = {n: "transformers" if n.startswith("PEFT") else "backbone" for n in systems}
    return {
        "rounds": rounds,
        "over_backbone": {n: times(took, seconds[floors[n]]) for n, took in seconds.items()},
        "different_over_one": times(seconds["different"], seconds["top half"]),
    }


def _texts(opened: Study, batch: int) -> list[str]:
    """Return texts of `TOKENS` tokens each."""
    trunk = opened.context.backbone.trunk
    cut = [str(trunk.tokenizer.decode(list(e.ids[1 : 1 + TOKENS]))) for e in opened.test]
    equal = [t for t in cut if len(trunk.tokens(t)) == TOKENS]
    return [equal[n % len(equal)] for n in range(batch)]


@torch.inference_mode()
def _forward(model: Any, ids: Tensor, **options: Any) -> Tensor:
    """Run transformers' model, or PEFT's, with the head on the last token alone."""
    logits: Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=1, **options).logits
    return logits
