"""Adapters as one, merged by PEFT."""

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

from red_lab.adapters.passes import Files
from redhost.core.training.lora_run import FORMAT
from redhost.registry.package.peft_adapter import CONFIG, WEIGHTS

__all__ = ["combined", "in_peft"]


def in_peft(model: Any, adapters: Mapping[str, Path]) -> Any:
    """Return PEFT's model with every adapter in it, by its name.

    Args:
        model: What they adapt; it is wrapped in place.
        adapters: Where PEFT's files of each lie.
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
    """Return adapters as one.

    Args:
        made: What `in_peft` gives.
        names: Which.
        how: PEFT's way; ``cat`` is the sum of the updates themselves, ``linear`` that of factors.
        weight: What each weighs.
        options: Of that way.
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
        # `made.save_pretrained` writes a card as well, and wants a model of transformers for it.
        config.save_pretrained(folder)
        written = Path(folder, CONFIG).read_bytes()
    return {CONFIG: written, WEIGHTS: safetensors.torch.save(weights, metadata=FORMAT)}
