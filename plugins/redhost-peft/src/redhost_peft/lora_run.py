"""The files of a LoRA adapter that is trained here (`in_trunk`).

PEFT creates the adapter, its configuration and initial weights; trained weights are saved under
PEFT's names.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.encoder import blocks_of
from redhost.registry.errors import MissingError, UsageError, suggest

from .lora import LoraExpert, linears_of
from .peft_adapter import CONFIG, WEIGHTS

RANK = 8
"""Default of R."""

ALPHA = 2
"""α / R."""

FORMAT = {"format": "pt"}
"""Metadata that PEFT writes into its safetensors files."""


def fresh_adapter(
    backbone: Backbone,
    *,
    rank: int | None = None,
    blocks: int | None = None,
    targets: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, bytes]:
    """Return the two files of an untrained adapter, as PEFT creates it.

    Args:
        backbone: The backbone to adapt.
        rank: R.
        blocks: How many of the top blocks it adapts; by default the upper half.
        targets: Suffixes of the names of the linear layers to adapt; by default all.
        seed: Seed of its initial weights.

    Raises:
        MissingError: If PEFT is not installed.
        UsageError: If the trunk has fewer blocks, or no such layers.
    """
    names = _targets(backbone, blocks=blocks, targets=targets)
    try:
        from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    except ImportError as e:
        raise MissingError(
            "adapters are made by PEFT", found="none", hint="pip install 'redhost[peft]'"
        ) from e
    r = rank or RANK
    config = LoraConfig(r=r, lora_alpha=ALPHA * r, target_modules=names)
    with (
        torch.random.fork_rng(devices=()),
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="redhost-") as folder,
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        made = get_peft_model(copy.deepcopy(backbone.trunk.model).cpu(), config)
        chosen = made.peft_config["default"]  # `made.save_pretrained` needs a transformers model
        chosen.base_model_name_or_path, chosen.inference_mode = backbone.name, True
        chosen.save_pretrained(folder)
        weights = {n: t.contiguous() for n, t in get_peft_model_state_dict(made).items()}
        saved = safetensors.torch.save(weights, metadata=FORMAT)
        return {CONFIG: Path(folder, CONFIG).read_bytes(), WEIGHTS: saved}


def _targets(backbone: Backbone, *, blocks: int | None, targets: Sequence[str] | None) -> list[str]:
    """Return the names of the linear modules to adapt."""
    path, found = blocks_of(backbone.trunk.model)
    count = (len(found) + 1) // 2 if blocks is None else blocks
    if count > len(found):
        raise UsageError(
            f"blocks of backbone {backbone.name!r}",
            expected=f"at most {len(found)}",
            found=str(count),
        )
    upper = tuple(f"{path}.{n}." for n in range(len(found) - count, len(found)))
    inside = [n for n in linears_of(backbone.trunk.model) if n.startswith(upper)]
    ends = {n.split(".", path.count(".") + 2)[-1] for n in inside}
    for target in targets or ():
        if not any(f".{end}".endswith(f".{target}") for end in ends):
            raise UsageError(
                f"backbone {backbone.name!r} has no linear layer {target!r} in its blocks",
                expected=", ".join(sorted(ends)),
                found=target,
                hint=suggest(target, ends),
            )
    return [n for n in inside if not targets or any(n.endswith(f".{t}") for t in targets)]


def adapter_files(expert: LoraExpert, config: bytes) -> Mapping[str, bytes]:
    """Return the two files of a trained adapter.

    Args:
        expert: The adapter.
        config: The configuration file it was created with.
    """
    return {CONFIG: config, WEIGHTS: safetensors.torch.save(expert.tensors(), metadata=FORMAT)}
