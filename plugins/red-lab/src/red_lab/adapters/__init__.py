"""Adapters trained independently on real texts: ways to choose, mix or merge them, in one run.

Passes with a chosen adapter are timed beside those of PEFT. Systems take turns, round by round: on
a busy machine only ratios within a round are meaningful.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import redhost_generate
import torch
from redhost_peft.lora import Lora
from redhost_peft.lora_run import fresh_adapter
from redhost_peft.rows import encode_with_states, moved_together
from torch import Tensor

import redhost
from red_lab.adapters import study, training
from red_lab.adapters.judge import Judge, Ledger, Read, score
from red_lab.adapters.mixtures import STEPS, arrow, train_xlora, xlora
from red_lab.adapters.study import PROMPT, Study, open_study
from red_lab.adapters.training import Files, combined, expert_of, files_of, in_peft, shuffled
from red_lab.bench.rounds import in_turns, times
from red_lab.metrics import Metrics, render, write_results
from red_lab.training import built_in_router
from redhost.core.bus.bus import BACKBONE
from redhost.core.composition.choose import compare_routers
from redhost.core.routers.base import ColumnData, Router
from redhost.core.routers.cards import Card, background_data, column_data
from redhost.core.types import CardRow

__all__ = ["measure", "page", "run"]

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


NONE, ORACLE, ARROW = "no adapter", "oracle", "PEFT's Arrow"
XLORA, JOINT = "X-LoRA", "joint adapter"

ROUTERS = ("ridge:k=1", "statistics:k=1", "centroid")
"""The host's router kinds: the two that `auto` compares for composed adapters, and one more."""

MERGES: Mapping[str, tuple[str, float, Mapping[str, float]]] = {
    "uniform merge": ("cat", 0.05, {}),
    "TIES merge": ("ties", 1.0, {"density": 0.2}),
    "DARE merge": ("dare_linear", 0.05, {"density": 0.5}),
}
"""Name → PEFT's combination type (`cat` is the sum of the updates themselves), the weight of each
adapter, and options. Of 1/20 and 1, the weight with fewer bits on other documents was taken."""


def run(*, out: Path, work: Path, runs: int) -> Path:
    """Train missing adapters, measure, and write the metrics and their page.

    Args:
        out: The folder for results.
        work: The folder for adapters, features and measured bits.
        runs: Rounds of timed measurements.
    """
    opened = open_study(work)
    metrics = {**measure(opened, work=work), "cost": measure_cost(opened, runs=runs)}
    return write_results(metrics, out, page=page)


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.adapters/4``."""
    return render("adapters", metrics)


def measure(opened: Study, *, work: Path) -> dict[str, Any]:
    """Measure all systems on the test excerpts."""
    test, selection = opened.test, Selection(study=opened)
    gate = train_xlora(work / "xlora", [*opened.adapters.values()], opened.learnt)
    ledger = _ledger(opened, gate, work / "bits")
    choices = {
        ORACLE: [e.domain for e in test],
        "nearest centroid": selection.nearest(),
        "at random": selection.at_random(),
        **{kind: selection.routed(router) for kind, router in selection.routers.items()},
    }
    names = {
        **choices,
        "shuffled numbers, named": [f"shuffled {e.domain}" for e in test],
        **{name: [name] * len(test) for name in (*MERGES, NONE, ARROW, XLORA, JOINT)},
    }
    counts = {system: np.array(ledger.bits(models)) for system, models in names.items()}
    columns = [*selection.data.values()]
    auto = compare_routers({k: selection.routers[k] for k in ROUTERS[:2]}, columns)
    return {
        "schema": "red-lab.adapters/4",
        "setting": _setting(opened),
        "merge_weights": {way: weight for way, (_, weight, _) in MERGES.items()},
        "systems": {
            system: score(bits, test, base=counts[NONE], best=counts[ORACLE])
            for system, bits in counts.items()
        },
        "mistakes": {
            system: Counter(
                f"{d} → {c}" for d, c in zip(choices[ORACLE], chosen, strict=True) if c != d
            )
            for system, chosen in choices.items()
        },
        "auto": {"kind": auto.kind, "tried": dict(auto.tried)},
    }


def _ledger(opened: Study, gate: Path, folder: Path) -> Ledger:
    """Return the bits of the test excerpts under any model of the study."""
    bare, adapters = opened.context.backbone, opened.adapters
    first = files_of(next(iter(adapters.values())))
    judge = Judge(backbone=bare, acts=expert_of(first).intervention(bare))

    @cache
    def all_in_peft() -> Any:
        return in_peft(training.language_model()[0], adapters)

    def merged(how: str, weight: float, options: Mapping[str, float]) -> Files:
        return combined(all_in_peft(), list(adapters), how, weight=weight, options=options)

    files: dict[str, Callable[[], Files]] = {
        JOINT: partial(files_of, opened.joint),
        **{way: partial(merged, *how) for way, how in MERGES.items()},
    }
    for seed, (name, path) in enumerate(adapters.items()):
        files[name] = partial(files_of, path)
        files[f"shuffled {name}"] = partial(shuffled, files_of(path), seed)

    def through(make: Callable[[], Files]) -> Read:
        return judge.through(expert_of(make()).intervention(bare))

    models: dict[str, Callable[[], Read]] = {
        **{name: partial(through, make) for name, make in files.items()},
        NONE: lambda: judge.bare,
        ARROW: partial(arrow, adapters),
        XLORA: partial(xlora, [*adapters.values()], gate),
    }
    return Ledger(folder, judge=judge, excerpts=opened.test, models=models)


def _setting(opened: Study) -> dict[str, Any]:
    return {
        "domains": list(opened.adapters),
        "rank": training.RANK,
        "blocks": training.BLOCKS,
        "steps": study.STEPS,
        "early": study.EARLY,
        "step_tokens": training.BATCH * training.WINDOW,
        "prompt": study.PROMPT,
        "longest": study.LONGEST,
        "excerpts": len(opened.test),
        "bytes": sum(e.size for e in opened.test),
        "card": study.SHOWN,
        "joint_steps": len(opened.learnt) // training.BATCH,
        "gate_windows": STEPS,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Selection from the inputs that a host has: cards, and the backbone's states of prompts.

    Attributes:
        study: The study.
    """

    study: Study

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The adapters' names, in column order."""
        return tuple(sorted(self.study.adapters))

    @cached_property
    def data(self) -> Mapping[str, ColumnData]:
        """A router's training data for each column: all tokens of the cards' fit passages."""
        context, columns = self.study.context, dict[str, ColumnData]()
        for name in self.names:
            rows = [CardRow(text=t, label="", part="fit") for t in self.study.cards[name]]
            card = Card(column=name, kind="texts", rows=tuple(rows), task=context.backbone.task)
            columns[name] = column_data(card, encode_z=self._read, seed=0)
        others = background_data(
            context.background, column=BACKBONE, composed=self.names, encode_z=self._read
        )
        assert others is not None  # noqa: S101  (there is a background card)
        return {**columns, BACKBONE: others}

    @cached_property
    def routers(self) -> Mapping[str, Router]:
        """The host's routers over the adapters and the backbone, by kind, solved as a host does."""
        width = 3 * self.study.context.backbone.width  # z, and its means over two horizons
        config, routers = redhost.BusConfig(width=width, labels=()), dict[str, Router]()
        for kind in ROUTERS:
            routers[kind] = built_in_router(kind, config, (*self.names, BACKBONE))
            routers[kind].solve([*self.data.values()])
        return routers

    @cached_property
    def prompts(self) -> list[Tensor]:
        """The router inputs ``(PROMPT, 3·D)`` of the tokens of each test excerpt's prompt."""
        trunk = self.study.context.backbone.trunk
        ids = [torch.tensor([e.ids[:PROMPT]]) for e in self.study.test]
        with torch.inference_mode():
            return [self._rows(trunk.hidden_states(row)[0]) for row in ids]

    def routed(self, router: Router) -> list[str]:
        """Return the column of largest weight after each prompt; no adapter is the backbone's."""
        with torch.inference_mode():
            best = router.weights(torch.stack([x[-1] for x in self.prompts])).argmax(-1).tolist()
        return [(*self.names, NONE)[k] for k in best]

    def nearest(self) -> list[str]:
        """Return the adapter whose card's mean state has the largest cosine with a prompt's."""
        width = self.study.context.backbone.width
        means = torch.stack([self.data[n].z[:, :width].mean(0) for n in self.names])
        prompts = torch.stack([x[:, :width].mean(0) for x in self.prompts])
        cosine = torch.nn.functional.normalize(prompts) @ torch.nn.functional.normalize(means).T
        return [self.names[k] for k in cosine.argmax(-1).tolist()]

    def at_random(self) -> list[str]:
        """Return a random adapter for each prompt."""
        generator = torch.Generator().manual_seed(0)
        picked = torch.randint(len(self.names), (len(self.study.test),), generator=generator)
        return [self.names[k] for k in picked.tolist()]

    def _read(self, texts: Sequence[str]) -> Tensor:
        """Return the router input of the texts' tokens ``(N, 3·D)``, concatenated."""
        return torch.cat([self._rows(self.study.context.encode([t])) for t in texts])

    def _rows(self, h: Tensor) -> Tensor:
        """Return [z | c] ``(T, 3·D)`` for a text's states ``(T, D)``."""
        eps = self.study.context.backbone.eps
        z = torch.nn.functional.layer_norm(h, h.shape[-1:], eps=eps)
        return torch.cat([z, redhost_generate.contexts(h, eps=eps)], dim=1)
