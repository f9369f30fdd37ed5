"""Adapters merged into one by PEFT."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from redhost_peft.lora_run import FORMAT
from redhost_peft.peft_adapter import CONFIG, WEIGHTS

from red_lab.adapters.passes import Files

__all__ = ["combined", "in_peft"]


def in_peft(model: Any, adapters: Mapping[str, Path]) -> Any:
    """Return PEFT's model with every adapter loaded under its name.

    Args:
        model: The adapted model; it is wrapped in place.
        adapters: The folder of each adapter's PEFT files.
    """
    from peft import PeftModel

    (first, folder), *others = adapters.items()
    made = PeftModel.from_pretrained(model, folder, adapter_name=first)
    for name, path in others:
        made.load_adapter(path, adapter_name=name)
    return made


def combined(
    made: Any, names: Sequence[str], how: str, *, weight: float, options: Mapping[str, float]
) -> Files:
    """Return several adapters merged into one.

    Args:
        made: The model from `in_peft`.
        names: The adapters to merge.
        how: PEFT's type: ``cat`` sums the updates themselves, ``linear`` sums the factors.
        weight: The weight of each adapter.
        options: Options of that type.
    """
    from peft import get_peft_model_state_dict

    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        made.add_weighted_adapter(
            list(names), [weight] * len(names), "merged", combination_type=how, **options
        )
        state = get_peft_model_state_dict(made, adapter_name="merged")
        config = made.peft_config["merged"]
        config.inference_mode = True
        made.delete_adapter("merged")
    weights = {name: t.contiguous() for name, t in state.items()}
    with tempfile.TemporaryDirectory() as folder:
        # `made.save_pretrained` also writes a model card, which needs a transformers model.
        config.save_pretrained(folder)
        written = Path(folder, CONFIG).read_bytes()
    return {CONFIG: written, WEIGHTS: safetensors.torch.save(weights, metadata=FORMAT)}
