"""Time of a pass with a chosen adapter, compared with PEFT, and time of a choice among many.

Systems take turns, round by round: on a busy machine only ratios within a round are meaningful.
"""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from time import process_time
from typing import Any

import torch
from redhost_peft.lora import Lora
from redhost_peft.lora_run import fresh_adapter
from redhost_peft.rows import encode_with_states, moved_together
from torch import Tensor

from red_lab.adapters.passes import expert_of, files_of
from red_lab.adapters.strangers import BLOCKS, language_model
from red_lab.adapters.study import Study
from red_lab.bench.rounds import in_turns, spread, times
from redhost.core.bus.bus import BACKBONE
from redhost.core.routers.ridge import RidgeRouter

__all__ = ["measure_cost"]

BATCHES: Mapping[int, int] = {1: 3, 8: 1, 64: 1}
"""Batch size → rounds for each requested round; small batches are repeated."""

TOKENS = 16
"""Tokens of a text."""

MANY = 10_000
"""Number of adapters to choose among: random router rows, one for each."""

STEP_ROUNDS = 8
"""Tokens that are timed for each requested round."""


def measure_cost(opened: Study, *, runs: int) -> dict[str, Any]:
    """Time a pass, a step of generation, and a choice.

    Args:
        opened: The study.
        runs: Number of rounds.
    """
    return {
        "schema": "red-lab.adapters-cost/1",
        "threads": torch.get_num_threads(),
        "tokens": TOKENS,
        "blocks": BLOCKS,
        "runs": runs,
        "passes": {str(n): _passes(opened, n, rounds=k * runs) for n, k in BATCHES.items()},
        "step": _step(opened, rounds=STEP_ROUNDS * runs),
        "choice": {str(n): _choice(opened, n, rounds=runs) for n in BATCHES},
    }


def _passes(opened: Study, batch: int, *, rounds: int) -> dict[str, Any]:
    """Time passes: of the backbone, with one adapter, with one for each text, and PEFT's."""
    bare = opened.context.backbone
    trunk, texts = bare.trunk, _texts(opened, batch)
    half = [expert_of(files_of(p)).intervention(bare) for p in opened.adapters.values()]
    whole = expert_of(fresh_adapter(bare, blocks=2 * BLOCKS)).intervention(bare)

    def ours(acts: Sequence[Lora]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            _, states = encode_with_states(trunk, texts, acts)
            return moved_together(trunk, texts, acts, states)

        return run

    ids = torch.tensor([trunk.tokens(t) for t in texts])
    alone, peft, names = language_model()[0], _in_peft(opened), list(opened.adapters)
    mixed = [names[n % len(names)] for n in range(batch)]
    systems: dict[str, Callable[[], object]] = {
        "backbone": partial(trunk.encode, texts),
        "top half": ours([half[0]] * batch),
        "all blocks": ours([whole] * batch),
        "different": ours([half[n % len(half)] for n in range(batch)]),
        "transformers": partial(_forward, alone, ids),
        "PEFT, named": partial(_forward, peft, ids),
        "PEFT, mixed batch": partial(_forward, peft, ids, adapter_names=mixed),
    }
    seconds = in_turns(systems, rounds=rounds)
    ratios = {
        name: times(took, seconds["transformers" if name.startswith("PEFT") else "backbone"])
        for name, took in seconds.items()
    }
    return {
        "rounds": rounds,
        "backbone_seconds": spread(seconds["backbone"]),
        "over_backbone": ratios,
        "different_over_one": times(seconds["different"], seconds["top half"]),
    }


def _step(opened: Study, *, rounds: int) -> dict[str, Any]:
    """Time a token of generation with a named adapter: redhost's and PEFT's."""
    bare, adapter = opened.context.backbone, next(iter(opened.adapters.values()))
    acts, peft = expert_of(files_of(adapter)).intervention(bare), _in_peft(opened)
    prompt, head = torch.tensor([opened.valid[0].ids]), bare.classifier
    assert head is not None  # noqa: S101  (it generates text)
    caches: dict[str, Any] = {}
    known = inspect.signature(peft.get_base_model().forward).parameters
    name = "cache" if "cache" in known else "past_key_values"  # since transformers 5.24

    @torch.inference_mode()
    def ours(ids: Tensor) -> Tensor:
        with acts.apply(bare.trunk):
            h, caches["ours"] = bare.trunk.decode_step(ids, caches.get("ours"))
        return h[0, -1:] @ head.T

    @torch.inference_mode()
    def theirs(ids: Tensor) -> Tensor:
        made = peft(input_ids=ids, use_cache=True, **{name: caches.get("theirs")})
        caches["theirs"] = getattr(made, name)
        logits: Tensor = made.logits
        return logits

    ours(prompt), theirs(prompt)
    token = prompt[:, -1:]
    systems = {"ours": partial(ours, token), "PEFT": partial(theirs, token)}
    seconds = in_turns(systems, rounds=rounds)
    return {
        "rounds": rounds,
        "context": prompt.shape[1],
        "over_peft": times(seconds["ours"], seconds["PEFT"]),
    }


def _choice(opened: Study, batch: int, *, rounds: int) -> dict[str, Any]:
    """Time the router's choice among `MANY` adapters, without the backbone's pass."""
    width = 3 * opened.context.backbone.width
    columns = (*(f"expert{n:05d}" for n in range(MANY)), BACKBONE)
    router, generator = RidgeRouter(width=width, columns=columns, k=1), torch.Generator()
    rows = torch.randn(len(columns), 1, width, generator=generator)
    router.replace_rows({n: (row, torch.zeros(1)) for n, row in enumerate(rows)})
    z = torch.randn(batch, width, generator=generator)
    ask = torch.inference_mode()(partial(router.weights, z))
    ask()
    return {"ms": spread([1000 * _cpu_seconds(ask) / batch for _ in range(rounds)]), "of": MANY}


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Return CPU seconds, which exclude the time that other processes take."""
    start = process_time()
    work()
    return process_time() - start


def _texts(opened: Study, batch: int) -> list[str]:
    """Return texts of `TOKENS` tokens each."""
    trunk = opened.context.backbone.trunk
    found = [str(trunk.tokenizer.decode(list(e.ids[1 : 1 + TOKENS]))) for e in opened.valid]
    same = [t for t in found if len(trunk.tokens(t)) == TOKENS]
    return [same[n % len(same)] for n in range(batch)]


def _in_peft(opened: Study) -> Any:
    """Return PEFT's model with every adapter loaded, the first one active."""
    from peft import PeftModel

    first, *others = opened.adapters.items()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        made = PeftModel.from_pretrained(language_model()[0], first[1], adapter_name=first[0])
        for name, folder in others:
            made.load_adapter(folder, adapter_name=name)
    return made.eval()


@torch.inference_mode()
def _forward(model: Any, ids: Tensor, **options: Any) -> Tensor:
    """Run transformers' model, or PEFT's, with the head on the last token alone."""
    made: Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=1, **options).logits
    return made
