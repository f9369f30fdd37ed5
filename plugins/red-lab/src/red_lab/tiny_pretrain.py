"""Pretrain the tiny language model on arithmetic text, with checkpoints.

Every batch depends on the seed and the step alone, so a run that was stopped goes on where its
last checkpoint is and ends with the weights of a run that was not (same machine and threads).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from red_lab.arithmetic import Row, Split
from red_lab.corpus import Corpus, Example
from red_lab.progress import Bar
from red_lab.tiny_model import END, Shape, TinyLM, make_model, make_tokenizer, pad_right

__all__ = ["Pretraining", "exact", "pretrain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """How the language model trains.

    Attributes:
        steps: Steps of AdamW.
        batch: Examples a step.
        learning_rate: Reached after ``warmup`` steps, held for half of the steps, then decayed
            along a cosine to 2 %.
        warmup: Steps of linear warm-up.
        weight_decay: AdamW's.
        later: Weight of the loss on each token after the next one.
        every: Steps between two checkpoints.
    """

    steps: int = 2000
    batch: int = 128
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 0.1
    later: float = 0.5
    every: int = 100


class Targets(NamedTuple):
    """What the states at N positions have to predict.

    Attributes:
        row: ``(N,)``, which example of the batch.
        position: ``(N,)``, which token of it.
        tokens: ``(N, A)``, the next A tokens; 0 (padding) after the end.
    """

    row: Tensor
    position: Tensor
    tokens: Tensor


def pretrain(
    split: Split,
    *,
    seed: int = 0,
    shape: Shape | None = None,
    settings: Pretraining | None = None,
    checkpoint: Path | None = None,
) -> TinyLM:
    """Return a language model that has seen no pair which ``split`` holds out.

    Args:
        split: What is held out.
        seed: Initial weights and text.
        shape: Size of the model.
        settings: How to train.
        checkpoint: A file to write now and then, and to go on from where it exists.
    """
    shape, settings = shape or Shape(), settings or Pretraining()
    model, corpus = make_model(shape, seed=seed), Corpus.of(split, seed=seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    run = {"split": str(split), "seed": seed, **asdict(shape), **asdict(settings)}
    start = _resume(checkpoint, model, optimizer, run=run)
    bar, tokenizer = Bar("pretraining", total=settings.steps), make_tokenizer()
    for step in range(start, settings.steps):
        rate = settings.learning_rate * _schedule(step, settings)
        ids, targets = _encode(tokenizer, corpus.batch(step, size=settings.batch), model.ahead)
        loss = _step(model, optimizer, ids, targets, rate=rate, later=settings.later)
        bar.update(step + 1, f"loss {loss:.4f}")
        if checkpoint is not None and (step + 1) % settings.every == 0:
            _store(checkpoint, model, optimizer, step=step + 1, run=run)
    return model.eval().requires_grad_(False)


def exact(model: TinyLM, rows: Sequence[Row]) -> float:
    """Return the share of questions after which all the answer's tokens are the likeliest."""
    examples = [Example(row.text, row.label) for row in rows]
    ids, targets = _encode(make_tokenizer(), examples, model.ahead)
    with torch.inference_mode():
        h = model.hidden(ids)[targets.row, targets.position]  # (N, D)
        right = model.logits(h)[:, 0].argmax(dim=-1) == targets.tokens[:, 0]  # (N,)
    wrong = set(targets.row[~right].tolist())
    return 1 - len(wrong) / len(rows)


def _schedule(step: int, settings: Pretraining) -> float:
    """Return the learning rate of a step, as a share of its peak."""
    after = max(0.0, 2 * step / settings.steps - 1)
    decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * after))
    return min(1.0, (step + 1) / settings.warmup) * decay


def _encode(
    tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], ahead: int
) -> tuple[Tensor, Targets]:
    """Return token ids ``(B, T)`` and what every answer position has to predict."""
    texts = [example.question + example.answer + END for example in examples]
    ids = pad_right(tokenizer(texts)["input_ids"], extra=ahead)  # (B, T + A)
    places = [
        (row, len(example.question) - 1 + i)
        for row, example in enumerate(examples)
        for i in range(len(example.answer) + 1)
    ]
    row, position = torch.tensor(places).T
    tokens = torch.stack([ids[row, position + 1 + k] for k in range(ahead)], dim=1)
    return ids[:, :-ahead], Targets(row, position, tokens)


def _step(
    model: TinyLM,
    optimizer: torch.optim.Optimizer,
    ids: Tensor,
    targets: Targets,
    *,
    rate: float,
    later: float,
) -> float:
    """Take one step; return the loss."""
    logits = model.logits(model.hidden(ids)[targets.row, targets.position])  # (N, A, W)
    losses = [
        nn.functional.cross_entropy(logits[:, k], targets.tokens[:, k], ignore_index=0)
        for k in range(model.ahead)
    ]
    loss = losses[0] + later * torch.stack([*losses[1:], losses[0] * 0]).sum()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return float(loss.detach())


def _store(
    file: Path, model: TinyLM, optimizer: torch.optim.Optimizer, *, step: int, run: dict[str, Any]
) -> None:
    """Write a checkpoint; a crash leaves the old one whole."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    torch.save({**state, "run": run}, fresh)
    os.replace(fresh, file)  # noqa: PTH105


def _resume(
    file: Path | None, model: TinyLM, optimizer: torch.optim.Optimizer, *, run: dict[str, Any]
) -> int:
    """Load a checkpoint of the same run, if there is one; return the first step to take."""
    if file is None or not file.exists():
        return 0
    state = torch.load(file, weights_only=True)
    if state["run"] != run:
        raise ValueError(f"{file} is a checkpoint of another run: {state['run']}, not {run}")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
