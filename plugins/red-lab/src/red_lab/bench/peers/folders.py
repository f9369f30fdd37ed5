"""Write the folder from which every library loads its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from red_lab.bench.peers.model import CLASSIFIER, IDS
from red_lab.bench.trunks import open_trunk, token_ids
from red_lab.cost_build import CLASSES

__all__ = ["ROWS", "plain", "write_model"]

ROWS = 64


def write_model(name: str, folder: Path) -> Path:
    """Write a trunk, its classifier and the token ids of real texts, unless they exist.

    Args:
        name: ``smollm2``, whose classifier is random, or ``tiny``.
        folder: The folder to write to.
    """
    done = folder / IDS
    if not done.exists():
        trunk = open_trunk(name)
        plain(trunk.model).save_pretrained(folder)
        safetensors.torch.save_file({"weight": _classifier(name, trunk.width)}, folder / CLASSIFIER)
        done.write_text(json.dumps(token_ids(trunk, ROWS).tolist()), "utf-8")  # last: all is there
    return folder


def plain(model: Any) -> Any:
    """Return the same model without the quantisation entry of its file, which no longer applies."""
    options = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    made = type(model)(type(model.config).from_dict(options))
    made.load_state_dict(model.state_dict())
    return made


def _classifier(name: str, width: int) -> torch.Tensor:
    if name == "tiny":
        from red_lab.hotswap_measure import shipped
        from redhost.core.composition.prepare import open_backbone

        weight = open_backbone(shipped()[0])[1].classifier
        if weight is not None:
            return weight.clone()
    generator = torch.Generator().manual_seed(0)
    return torch.randn(CLASSES, width, generator=generator).div(width**0.5)
