"""Adapters' files as PEFT writes them: the expert that they make, shuffled values, and merges."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from redhost_peft.lora import LoraExpert, lora_from_files
from redhost_peft.lora_run import FORMAT
from redhost_peft.peft_adapter import CONFIG, WEIGHTS

__all__ = ["Files", "combined", "expert_of", "files_of", "in_peft", "shuffled", "silent"]

Files = Mapping[str, bytes]


@contextmanager
def silent() -> Iterator[None]:
    """Drop what libraries print and warn of while the block runs."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def files_of(package: Path) -> dict[str, bytes]:
    """Return PEFT's two files of a package."""
    return {name: (package / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def expert_of(files: Files) -> LoraExpert:
    """Return an adapter without a head."""
    return lora_from_files(files, who="an adapter", space="hidden", labels=()).requires_grad_(False)


def shuffled(files: Files, seed: int) -> dict[str, bytes]:
    """Return an adapter of the same shapes with the values of each tensor permuted at random."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: t.flatten()[torch.randperm(t.numel(), generator=generator)].reshape(t.shape)
        for name, t in safetensors.torch.load(files[WEIGHTS]).items()
    }
    return {CONFIG: files[CONFIG], WEIGHTS: safetensors.torch.save(tensors)}


def in_peft(model: Any, adapters: Mapping[str, Path]) -> Any:
    """Return PEFT's model with every adapter loaded under its name, the first one active.

    Args:
        model: The adapted model; it is wrapped in place.
        adapters: The folder of each adapter's PEFT files.
    """
    from peft import PeftModel

    (first, folder), *others = adapters.items()
    with silent():
        adapted = PeftModel.from_pretrained(model, folder, adapter_name=first)
        for name, path in others:
            adapted.load_adapter(path, adapter_name=name)
    return adapted.eval()


def combined(
    adapted: Any, names: Sequence[str], how: str, *, weight: float, options: Mapping[str, float]
) -> Files:
    """Return several adapters merged into one.

    Args:
        adapted: The model from `in_peft`.
        names: The adapters to merge.
        how: PEFT's type: ``cat`` sums the updates themselves, ``linear`` sums the factors.
        weight: The weight of each adapter.
        options: Options of that type.
    """
    from peft import get_peft_model_state_dict

    with silent():
        torch.manual_seed(0)
        adapted.add_weighted_adapter(
            list(names), [weight] * len(names), "merged", combination_type=how, **options
        )
        state = get_peft_model_state_dict(adapted, adapter_name="merged")
        config = adapted.peft_config["merged"]
        config.inference_mode = True
        adapted.delete_adapter("merged")
    weights = {name: t.contiguous() for name, t in state.items()}
    with tempfile.TemporaryDirectory() as folder:
        # `adapted.save_pretrained` also writes a model card, which needs a transformers model.
        config.save_pretrained(folder)
        written = Path(folder, CONFIG).read_bytes()
    return {CONFIG: written, WEIGHTS: safetensors.torch.save(weights, metadata=FORMAT)}
