"""Build all packages of a split: one backbone, five experts."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import torch

from red_lab.arithmetic import RANGES, Split
from red_lab.base import build_backbone
from red_lab.ranges import build_expert, open_range_training

__all__ = ["THREADS", "build_all", "installed_share"]

THREADS = 2
"""Results depend on the number of threads bit by bit, so builds fix it."""


def build_all(number: int, *, seed: int, out: Path, work: Path) -> list[Path]:
    """Build the backbone and the experts of a split as projects in a folder.

    Args:
        number: The split, 0..4; 0 is the one that is shipped.
        seed: Random seed of all stages.
        out: Folder of the project folders.
        work: Folder of checkpoints.

    Returns:
        The packages' folders, the backbone's first.
    """
    torch.set_num_threads(THREADS)
    split = Split.numbered(number)
    backbone = build_backbone(split, out / "red-backbone-tiny", seed=seed, work=work)
    context = open_range_training(backbone, split)
    experts = [
        build_expert(context, name, out / f"red-expert-{name}", seed=seed) for name, _, _ in RANGES
    ]
    return [backbone, *experts]


def installed_share() -> str:
    """Return a sentence on the share of the data that the installed backbone was trained on."""
    version = distribution("red-backbone-tiny").version
    spec = find_spec("red_backbone_tiny")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("red_backbone_tiny has no files")
    manifest = json.loads(Path(spec.origin).with_name("backbone.json").read_bytes())
    training = manifest["training"]
    return (
        f"red-backbone-tiny {version} was adapted on {training['metrics']['share']:.0%} of the "
        f"experts' training pairs ({training['data']}); the rows above are pairs nobody saw"
    )
