"""Adapters as third parties train them: PEFT's LoRA in transformers' model, each independently.

Finished adapters are not trained again; interrupted training resumes from the last checkpoint.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from red_lab.red.run import smollm2_file

__all__ = [
    "BATCH",
    "BLOCKS",
    "RANK",
    "TARGETS",
    "WINDOW",
    "language_model",
    "train_stranger",
    "training_windows",
    "windows",
]

BLOCKS, RANK = 15, 8
"""For every adapter: top blocks (of 30), and R; α is 2 R."""

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

WINDOW, BATCH = 256, 2
"""Tokens of a window, windows of a step."""

RATE = 2e-3
"""The initial learning rate, which decays linearly to zero; not tuned."""

EVERY = 16
"""Steps between checkpoints."""


def language_model(*, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return transformers' model of SmolLM2-135M, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = smollm2_file()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
    return model.to(dtype), tokenizer


def train_stranger(
    folder: Path,
    learnt: Tensor,
    *,
    model: Any,
    rank: int = RANK,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Train an adapter and save it as PEFT does, unless it exists.

    Args:
        folder: The folder for PEFT's two files.
        learnt: The windows from `training_windows`, ``(S · BATCH, WINDOW)``.
        model: The language model, in bfloat16; it is not changed.
        rank: R; an adapter of another rank than the others is scaled by α / √R as they are
            (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732).
        progress: Called with (steps done, total steps).
    """
    from peft import LoraConfig, get_peft_model

    if (folder / "adapter_model.safetensors").exists():
        return
    torch.manual_seed(0)
    top = list(range(model.config.num_hidden_layers - BLOCKS, model.config.num_hidden_layers))
    alpha: dict[str, Any] = {"lora_alpha": 2 * RANK}
    if rank != RANK:
        alpha = {"lora_alpha": 2 * math.sqrt(RANK), "use_rslora": True}
    config = LoraConfig(r=rank, target_modules=list(TARGETS), layers_to_transform=top, **alpha)
    checkpoint, part = folder.with_suffix(".part"), folder.with_suffix(".saving")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = torch.split(learnt, BATCH)
        run = _Run(get_peft_model(model, config), steps=len(batches), checkpoint=checkpoint)
    for ids in batches[run.done :]:
        run.step(ids)
        if progress is not None:
            progress(run.done, len(batches))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.model.save_pretrained(part)
        run.model.unload()
    part.replace(folder)
    checkpoint.unlink(missing_ok=True)


class _Run:
    """A training run that resumes from its checkpoint.

    Args:
        model: PEFT's model.
        steps: Total number of steps.
        checkpoint: The checkpoint's file.
    """

    def __init__(self, model: Any, *, steps: int, checkpoint: Path) -> None:
        from peft import set_peft_model_state_dict

        self.model, self.steps, self.checkpoint, self.done = model, steps, checkpoint, 0
        weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            set_peft_model_state_dict(model, state["weights"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.done = int(state["done"])

    def step(self, ids: Tensor) -> None:
        """Take a training step on tokens ``(B, T)``."""
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * (1 - self.done / self.steps)
        self.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        if self.done % EVERY == 0:
            self._save()

    def _save(self) -> None:
        from peft import get_peft_model_state_dict

        weights, part = get_peft_model_state_dict(self.model), self.checkpoint.with_suffix(".tmp")
        state = self.optimizer.state_dict()
        torch.save({"weights": weights, "optimizer": state, "done": self.done}, part)
        part.replace(self.checkpoint)


def windows(text: str, tokenizer: Any) -> Tensor:
    """Return the tokens of a text in rows ``(N, WINDOW)``, the start token before each."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    width = WINDOW - 1
    rows = torch.tensor(ids[: len(ids) // width * width]).reshape(-1, width)
    return torch.cat([torch.full((len(rows), 1), tokenizer.bos_token_id), rows], dim=1)


def training_windows(text: str, tokenizer: Any, *, steps: int) -> Tensor:
    """Return the windows of all steps, ``(steps · BATCH, WINDOW)``, in random order.

    Every window of the text is used once before any is repeated.
    """
    rows = windows(text, tokenizer)
    generator = torch.Generator().manual_seed(0)
    rounds = math.ceil(steps * BATCH / len(rows))
    order = torch.cat([torch.randperm(len(rows), generator=generator) for _ in range(rounds)])
    return rows[order[: steps * BATCH]]
