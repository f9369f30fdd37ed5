"""All adapters mixed token by token, by PEFT: Arrow, and X-LoRA with a trained gate.

Arrow (Ostapenko et al. 2024, arXiv 2405.11157) weights the adapters in every layer, without
training. X-LoRA (Buehler and Buehler 2024, arXiv 2402.07148) makes two passes: one without
adapters, from whose last states a linear layer computes each token's weights, and one with all
adapters at these weights. Its gate is trained on windows of the authors' texts, which they would
have to share.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from redhost_peft.lora_run import FORMAT
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from torch import Tensor

from red_lab.adapters import training
from red_lab.adapters.judge import Read
from red_lab.adapters.training import files_of, silent
from red_lab.bench.peers_here import make_xlora
from red_lab.progress import shown

__all__ = ["STEPS", "arrow", "train_xlora", "xlora"]

STEPS = 100
"""Training windows of X-LoRA's gate, one a step."""

RATE = 1e-3
"""The gate's initial learning rate, which decays linearly to zero."""


def arrow(adapters: Mapping[str, Path]) -> Read:
    """Return a reader with Arrow over the upper blocks; the states below them are shared."""
    from peft import ArrowConfig, create_arrow_model

    with silent(), tempfile.TemporaryDirectory() as folder:
        # Arrow matches modules by the ends of their names, and would route all blocks.
        paths = [_lowered(path, Path(folder, name)) for name, path in adapters.items()]
        model = training.language_model()[0]
        model.model.layers = model.model.layers[-training.BLOCKS :]
        mixed = create_arrow_model(
            base_model=model,
            task_specific_adapter_paths=[str(p) for p in paths],
            arrow_config=ArrowConfig(rng_seed=0),
        )
    upper = mixed.eval().base_model.model.model

    def read(_: Tensor, states: Tensor) -> Tensor:
        last: Tensor = upper(inputs_embeds=states, use_cache=False).last_hidden_state
        return last

    return read


def _lowered(adapter: Path, folder: Path) -> Path:
    """Rewrite an adapter of the top blocks for a model that has only these blocks."""
    files, shift = files_of(adapter), training.LAYERS - training.BLOCKS
    config = {**json.loads(files[CONFIG]), "layers_to_transform": list(range(training.BLOCKS))}
    tensors = safetensors.torch.load(files[WEIGHTS])
    moved = {
        name.replace(f".layers.{n + shift}.", f".layers.{n}."): t
        for name, t in tensors.items()
        for n in range(training.BLOCKS)
        if f".layers.{n + shift}." in name
    }
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(config), "utf-8")
    (folder / WEIGHTS).write_bytes(safetensors.torch.save(moved, metadata=FORMAT))
    return folder


def train_xlora(folder: Path, adapters: Sequence[Path], learnt: Tensor) -> Path:
    """Train X-LoRA's gate, or resume from its checkpoint, unless it exists; return its file.

    Args:
        folder: The folder for the gate and its checkpoint.
        adapters: The folder in which PEFT saved each adapter.
        learnt: Training windows ``(N, T)`` in order, N at least `STEPS`.
    """
    file, checkpoint = folder / "gate.safetensors", folder / "gate.pt"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    mixed = _untrained(adapters)
    gate = mixed.base_model.internal_xlora_classifier

    def loss_on(ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss: Tensor = mixed(input_ids=ids, labels=ids).loss
        return loss

    windows = torch.split(learnt[:STEPS], 1)
    training.descend_linearly(
        gate, windows, loss_on, rate=RATE, checkpoint=checkpoint, progress=shown("X-LoRA")
    )
    safetensors.torch.save_file(gate.state_dict(), file)
    checkpoint.unlink(missing_ok=True)
    return file


def xlora(adapters: Sequence[Path], file: Path) -> Read:
    """Return a reader with X-LoRA and the gate of a file."""
    mixed = _untrained(adapters)
    mixed.base_model.internal_xlora_classifier.load_state_dict(safetensors.torch.load_file(file))

    def read(ids: Tensor, _: Tensor) -> Tensor:
        last: Tensor = mixed(input_ids=ids, output_hidden_states=True).hidden_states[-1]
        return last

    return read


def _untrained(adapters: Sequence[Path]) -> Any:
    """Return X-LoRA over saved adapters; only its gate is trainable."""
    model = training.language_model()[0].requires_grad_(False)
    model.config.use_cache = False
    with silent():
        return make_xlora(model, adapters).eval()
