"""Next versions of real models: trained further, on texts that no expert of the study uses.

The sentence encoder continues its contrastive training on pairs: a line of a television series has
to be closer to the line that follows it than to the others of its batch (InfoNCE, van den Oord et
al. 2018, equation 4). The language model continues next-token prediction. Every batch depends on
the seed and the step alone.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from red_lab.newsgroups import encoder, lines
from red_lab.progress import Bar
from red_lab.red.run import smollm2_file
from red_lab.training import adamw, descend, rate, resume, store

__all__ = ["MOVED", "Further", "further_trained"]

COPIED = (
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
)
"""Files of a sentence-transformers folder other than the model, if they exist."""


@dataclass(frozen=True, kw_only=True)
class Further:
    """Settings of a model's further training.

    Attributes:
        steps: Steps of AdamW.
        batch: Texts per step.
        tokens: Maximum number of tokens of a text.
        learning_rate: The peak learning rate (`red_lab.training.rate`).
        temperature: Temperature of the contrastive loss.
        seed: Seed of the order of the texts, and of dropout.
    """

    steps: int
    batch: int
    tokens: int
    learning_rate: float
    temperature: float = 0.05
    seed: int = 0


MOVED: dict[str, Further] = {
    "minilm": Further(steps=300, batch=32, tokens=48, learning_rate=3e-5),
    "smollm2": Further(steps=150, batch=4, tokens=96, learning_rate=5e-5),
}
"""Model → a small amount of a maintainer's usual training."""

SHORTEST = 6
"""Minimum number of words of a training line."""

CHECKPOINT = 25
"""Steps between two checkpoints."""


def further_trained(name: str, work: Path) -> Path:
    """Return the folder of a model's next version; train it if it does not exist yet.

    Args:
        name: ``minilm`` or ``smollm2``.
        work: The parent of the folder and the checkpoint.
    """
    how = MOVED[name]
    folder, checkpoint = work / f"next-{name}", work / f"next-{name}.pt"
    if (folder / "config.json").is_file():
        return folder
    model, tokenizer, loss = _open(name, how)
    torch.manual_seed(how.seed)
    model.train()
    optimizer = adamw(model, weight_decay=0.01)
    run = {"model": name, **asdict(how)}
    start, bar = resume(checkpoint, model, optimizer, run=run), Bar(name, total=how.steps)
    pairs = _pairs()
    for step in range(start, how.steps):
        torch.manual_seed(how.seed * how.steps + step)  # dropout
        chosen = random.Random(f"{how.seed} {step}").sample(pairs, how.batch)  # noqa: S311
        ids = [
            tokenizer(
                texts, truncation=True, max_length=how.tokens, padding=True, return_tensors="pt"
            )
            for texts in zip(*chosen, strict=True)
        ]
        share = rate(step, steps=how.steps, warmup=how.steps // 10)
        found = descend(model, optimizer, loss(*ids), learning_rate=how.learning_rate * share)
        bar.update(step + 1, f"loss {found:.4f}")
        if (step + 1) % CHECKPOINT == 0:
            store(checkpoint, model, optimizer, step=step + 1, run=run)
    _save(name, model.eval(), tokenizer, folder)
    checkpoint.unlink(missing_ok=True)
    return folder


def _pairs() -> list[tuple[str, str]]:
    """Return lines of a television series, each with the next one."""
    spoken = [line for line in lines() if len(line.split()) >= SHORTEST]
    return list(pairwise(spoken))


def _open(name: str, how: Further) -> tuple[nn.Module, Any, Callable[..., Tensor]]:
    """Return a model with its packaged weights, its tokenizer and its loss."""
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    if name == "minilm":
        tokenizer: Any = AutoTokenizer.from_pretrained(encoder())
        model: Any = AutoModel.from_pretrained(encoder())
        return (
            model,
            tokenizer,
            lambda first, second: _contrastive(model, first, second, how.temperature),
        )
    file = smollm2_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    read.config.__dict__.pop("quantization_config", None)  # its weights are dequantized by now
    made: Any = AutoModelForCausalLM
    model = made.from_config(read.config)
    model.load_state_dict(read.state_dict())
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return model, tokenizer, lambda first, _: _next_token(model, first)


def _contrastive(model: Any, first: Any, second: Any, temperature: float) -> Tensor:
    """Return the InfoNCE loss between B lines and the lines that follow them."""

    def read(ids: Any) -> Tensor:
        mask = ids["attention_mask"].unsqueeze(-1)
        states: Tensor = model(**ids).last_hidden_state
        pooled = (states * mask).sum(1) / mask.sum(1)
        return nn.functional.normalize(pooled, dim=-1)

    similar = read(first) @ read(second).T / temperature  # (B, B)
    return nn.functional.cross_entropy(similar, torch.arange(len(similar)))


def _next_token(model: Any, ids: Any) -> Tensor:
    """Return the mean next-token loss."""
    wanted = ids["input_ids"].masked_fill(ids["attention_mask"] == 0, -100)
    loss: Tensor = model(**ids, labels=wanted).loss
    return loss


def _save(name: str, model: Any, tokenizer: Any, folder: Path) -> None:
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    for name_of_file in _copied(name):
        (fresh / name_of_file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(encoder() / name_of_file, fresh / name_of_file)
    fresh.replace(folder)


def _copied(name: str) -> Sequence[str]:
    return [k for k in COPIED if name == "minilm" and (encoder() / k).is_file()]
