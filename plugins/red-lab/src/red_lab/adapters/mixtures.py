"""All adapters as one model: merged by PEFT, or mixed token by token by PEFT's Arrow.

PEFT's model holds the upper blocks alone: the states below them are shared and precomputed.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from torch import Tensor

from red_lab.adapters.judge import Read
from red_lab.adapters.merges import combined, in_peft
from red_lab.adapters.passes import Files, files_of
from red_lab.adapters.strangers import BLOCKS, language_model

__all__ = ["MERGES", "arrow", "merged"]

MERGES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "uniform merge": ("cat", {}),
    "TIES merge": ("ties", {"density": 0.2}),
    "DARE merge": ("dare_linear", {"density": 0.5}),
}
"""Name → PEFT's combination type and its options; `cat` is the sum of the updates themselves."""


def merged(adapters: Mapping[str, Path], way: str, *, weight: float) -> Files:
    """Return all adapters merged into one by PEFT.

    Args:
        adapters: The folders that PEFT saved.
        way: One of `MERGES`.
        weight: The weight of each adapter.
    """
    how, options = MERGES[way]
    made = _all_in_peft(tuple(adapters.items()))
    return combined(made, list(adapters), how, weight=weight, options=options)


def arrow(adapters: Mapping[str, Path]) -> Read:
    """Return a reader with PEFT's Arrow: each layer weights the adapters for each token."""
    from peft import ArrowConfig, create_arrow_model

    with (
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        tempfile.TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("ignore")
        # Arrow matches modules by the ends of their names, and would route all blocks.
        paths = [_lowered(path, Path(folder, name)) for name, path in adapters.items()]
        model = language_model()[0]
        model.model.layers = model.model.layers[-BLOCKS:]
        made = create_arrow_model(
            base_model=model,
            task_specific_adapter_paths=[str(p) for p in paths],
            arrow_config=ArrowConfig(rng_seed=0),
        )
    upper = made.eval().base_model.model.model

    def read(_: Tensor, states: Tensor) -> Tensor:
        found: Tensor = upper(inputs_embeds=states, use_cache=False).last_hidden_state
        return found

    return read


@cache
def _all_in_peft(adapters: tuple[tuple[str, Path], ...]) -> Any:
    """Return PEFT's model with every adapter loaded under its name."""
    return in_peft(language_model()[0], dict(adapters))


def _lowered(adapter: Path, folder: Path) -> Path:
    """Rewrite an adapter of the top blocks for a model that has only these blocks."""
    files, shift = files_of(adapter), 30 - BLOCKS
    config = {**json.loads(files[CONFIG]), "layers_to_transform": list(range(BLOCKS))}
    tensors = safetensors.torch.load(files[WEIGHTS])
    moved = {
        name.replace(f".layers.{n + shift}.", f".layers.{n}."): t
        for name, t in tensors.items()
        for n in range(BLOCKS)
        if f".layers.{n + shift}." in name
    }
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(config), "utf-8")
    (folder / WEIGHTS).write_bytes(safetensors.torch.save(moved, metadata={"format": "pt"}))
    return folder
