"""Pretrain the tiny language model on arithmetic text, with checkpoints.

Every batch depends only on the seed and the step. An interrupted run therefore continues from its
last checkpoint and ends with the same weights as an uninterrupted run (same machine and threads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from red_lab.arithmetic import ArithmeticRow, Split
from red_lab.corpus import Corpus, Example
from red_lab.progress import Bar
from red_lab.tiny_model import END, Shape, TinyLM, make_model, make_tokenizer, pad_right
from red_lab.training import adamw, descend, rate, resume, store

__all__ = ["Pretraining", "Targets", "exact", "pretrain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """Training settings of the language model.

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
    """The tokens that the states at N positions have to predict.

    Attributes:
        row: ``(N,)``, index of the example in the batch.
        position: ``(N,)``, index of the token in the example.
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
    """Return a language model trained without the pairs that ``split`` holds out.

    Args:
        split: The held-out folds.
        seed: Random seed of initial weights and text.
        shape: Size of the model.
        settings: Training settings.
        checkpoint: A file that is written regularly, and resumed from if it exists.
    """
    shape, settings = shape or Shape(), settings or Pretraining()
    model, corpus = make_model(shape, seed=seed), Corpus.of(split, seed=seed)
    optimizer = adamw(model, weight_decay=settings.weight_decay)
    run = {"split": str(split), "seed": seed, **asdict(shape), **asdict(settings)}
    start = resume(checkpoint, model, optimizer, run=run)
    bar, tokenizer = Bar("pretraining", total=settings.steps), make_tokenizer()
    for step in range(start, settings.steps):
        share = rate(step, steps=settings.steps, warmup=settings.warmup)
        ids, targets = _encode(tokenizer, corpus.batch(step, size=settings.batch), model.horizon)
        loss = descend(
            model,
            optimizer,
            _loss(model, ids, targets, later=settings.later),
            learning_rate=settings.learning_rate * share,
        )
        bar.update(step + 1, f"loss {loss:.4f}")
        if checkpoint is not None and (step + 1) % settings.every == 0:
            store(checkpoint, model, optimizer, step=step + 1, run=run)
    return model.eval().requires_grad_(False)


def exact(model: TinyLM, rows: Sequence[ArithmeticRow]) -> float:
    """Return the share of questions for which all tokens of the answer are the most probable."""
    examples = [Example(row.text, row.label) for row in rows]
    ids, targets = _encode(make_tokenizer(), examples, model.horizon)
    with torch.inference_mode():
        h = model.hidden(ids)[targets.row, targets.position]  # (N, D)
        right = model.logits(h)[:, 0].argmax(dim=-1) == targets.tokens[:, 0]  # (N,)
    wrong = set(targets.row[~right].tolist())
    return 1 - len(wrong) / len(rows)


def _encode(
    tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], horizon: int
) -> tuple[Tensor, Targets]:
    """Return token ids ``(B, T)`` and the targets of every answer position."""
    texts = [example.question + example.answer + END for example in examples]
    ids = pad_right(tokenizer(texts)["input_ids"], extra=horizon)  # (B, T + A)
    places = [
        (row, len(example.question) - 1 + i)
        for row, example in enumerate(examples)
        for i in range(len(example.answer) + 1)
    ]
    row, position = torch.tensor(places).T
    tokens = torch.stack([ids[row, position + 1 + k] for k in range(horizon)], dim=1)
    return ids[:, :-horizon], Targets(row, position, tokens)


def _loss(model: TinyLM, ids: Tensor, targets: Targets, *, later: float) -> Tensor:
    """Return the loss on the next tokens plus ``later`` times the loss on the tokens after them."""
    logits = model.logits(model.hidden(ids)[targets.row, targets.position])  # (N, A, W)
    losses = [
        nn.functional.cross_entropy(logits[:, k], targets.tokens[:, k], ignore_index=0)
        for k in range(model.horizon)
    ]
    return losses[0] + later * torch.stack([*losses[1:], losses[0] * 0]).sum()
