"""X-LoRA over the authors' adapters: all of them run on every token, weighted by a trained gate.

PEFT's implementation (Buehler and Buehler 2024, arXiv 2402.07148) makes two passes: one without
adapters, from whose last states a linear layer computes each token's weights, and one with all
adapters at these weights. The gate is trained on windows of the authors' texts, which they would
have to share.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from red_lab.adapters.judge import Read
from red_lab.adapters.strangers import language_model
from red_lab.bench.peers.lora import make_xlora
from red_lab.progress import shown

__all__ = ["train_xlora", "xlora"]

STEPS = 100
"""Training windows of the gate, one a step."""

RATE = 1e-3
"""AdamW's initial learning rate, which decays linearly to zero."""

EVERY = 20
"""Steps between checkpoints."""


def train_xlora(folder: Path, adapters: Sequence[Path], learnt: Tensor) -> Path:
    """Train the gate, or resume from its checkpoint, unless it exists; return its file.

    Args:
        folder: The folder for the gate and its checkpoint.
        adapters: The folder in which PEFT saved each adapter.
        learnt: Training windows ``(N, T)`` in order, N at least `STEPS`.
    """
    file, checkpoint = folder / "gate.safetensors", folder / "gate.part"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    made, progress = _untrained(adapters), shown("X-LoRA")
    gate = made.base_model.internal_xlora_classifier
    optimizer, done = torch.optim.AdamW(gate.parameters(), lr=RATE, weight_decay=0.0), 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        gate.load_state_dict(state["gate"])
        optimizer.load_state_dict(state["optimizer"])
        done = int(state["done"])
    for step in range(done, STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        ids = learnt[step : step + 1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = made(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            state = {"gate": gate.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "done": step + 1}, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
        progress(step + 1, STEPS)
    safetensors.torch.save_file(gate.state_dict(), file)
    checkpoint.unlink(missing_ok=True)
    return file


def xlora(adapters: Sequence[Path], file: Path) -> Read:
    """Return a reader with X-LoRA and the gate of a file."""
    made = _untrained(adapters)
    made.base_model.internal_xlora_classifier.load_state_dict(safetensors.torch.load_file(file))

    def read(ids: Tensor, _: Tensor) -> Tensor:
        found: Tensor = made(input_ids=ids, output_hidden_states=True).hidden_states[-1]
        return found

    return read


def _untrained(adapters: Sequence[Path]) -> Any:
    """Return X-LoRA over saved adapters; only its gate is trainable."""
    model = language_model()[0].requires_grad_(False)
    model.config.use_cache = False
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return make_xlora(model, adapters).eval()
