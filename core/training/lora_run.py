"""The files of a LoRA adapter that is trained here (`training.in_trunk`).

PEFT makes the adapter, its configuration and first weights; what it learns is written back under
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

from ...registry.errors import MissingError, UsageError, suggest
from ...registry.package.peft_adapter import CONFIG, WEIGHTS
from ..backbones.backbone import Backbone
from ..backbones.encoder import blocks_of, linears_of
from ..backbones.interventions.lora import LoraExpert

RANK = 8
"""R, where its author says nothing."""

ALPHA = 2
"""α / R."""

FORMAT = {"format": "pt"}
"""What PEFT writes into its files."""


def fresh_adapter(
    backbone: Backbone,
    *,
    rank: int | None = None,
    blocks: int | None = None,
    targets: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, bytes]:
    """Return the two files of an adapter that has learnt nothing, as PEFT makes it.

    Args:
        backbone: What it is for.
        rank: R.
        blocks: How many of the top blocks it adapts; by default the upper half.
        targets: Which linear layers of a block, by the end of their names; by default all.
        seed: Where its first weights come from.

    Raises:
        MissingError: If PEFT is not installed.
        UsageError: If the trunk has no such blocks or layers.
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
        chosen = made.peft_config["default"]  # `made.save_pretrained` wants a model of transformers
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
    """Return the two files of an adapter that was trained.

    Args:
        expert: The adapter.
        config: What it was made with.
    """
    return {CONFIG: config, WEIGHTS: safetensors.torch.save(expert.tensors(), metadata=FORMAT)}
