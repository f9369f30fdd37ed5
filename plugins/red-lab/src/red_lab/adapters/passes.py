"""Passes of adapters over texts, from cached states.

All adapters act in the same top blocks, so the states below are computed once for a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from redhost_peft.graft import moved_by, states_below
from redhost_peft.lora import LoraExpert, lora_from_files
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from torch import Tensor

import redhost
from redhost.core.backbones.interventions import Intervention
from redhost.core.bus.experts import Expert
from redhost.core.model.build import make_expert_module
from redhost.core.plugins.manager import Plugins
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_expert

__all__ = ["Files", "Passes", "expert_of", "files_of", "head_of", "shuffled"]

Files = Mapping[str, bytes]


def files_of(package: Path) -> dict[str, bytes]:
    """Return PEFT's two files of a package."""
    return {name: (package / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def expert_of(files: Files) -> LoraExpert:
    """Return an adapter without a head."""
    return lora_from_files(files, who="an adapter", space="hidden", labels=()).requires_grad_(False)


@dataclass(eq=False)
class Passes:
    """Passes from the states at which all adapters start.

    Attributes:
        backbone: The backbone.
        acts: Any adapter of the study: all start at the same block.
    """

    backbone: redhost.Backbone
    acts: Intervention
    known: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def below(self, ids: Tensor) -> Tensor:
        """Return the states ``(B, T, D)`` of tokens ``(B, T)``, cached text by text."""
        rows = [tuple(row) for row in ids.tolist()]
        if any(row not in self.known for row in rows):
            states = states_below(self.backbone.trunk, ids, self.acts)
            assert states is not None  # noqa: S101  (nobody adapts the first block)
            self.known |= dict(zip(rows, states, strict=True))
        return torch.stack([self.known[row] for row in rows])

    def moved(self, texts: Sequence[str], acts: Intervention) -> Tensor:
        """Return h' ``(N, D)`` of an adapter."""
        trunk = self.backbone.trunk
        return self._encode(texts, lambda ids: moved_by(trunk, ids, acts, states=self.below(ids)))

    def _encode(self, texts: Sequence[str], compute: Callable[[Tensor], Tensor]) -> Tensor:
        return self.backbone.trunk.encode(texts, compute=compute, alone=False)


def shuffled(files: Files, seed: int) -> dict[str, bytes]:
    """Return an adapter of the same shapes with the values of each tensor permuted at random."""
    generator = torch.Generator().manual_seed(seed)
    made = {
        name: t.flatten()[torch.randperm(t.numel(), generator=generator)].reshape(t.shape)
        for name, t in safetensors.torch.load(files[WEIGHTS]).items()
    }
    return {CONFIG: files[CONFIG], WEIGHTS: safetensors.torch.save(made)}


def head_of(package: Path) -> Expert:
    """Return an adapter's expert with its own head: on the bus it is that head alone."""
    files = read_expert(from_folder(package)).unwrap(package.name)
    bus = redhost.BusConfig(width=files.manifest.reads.width, labels=())
    return make_expert_module(files, bus=bus, plugins=Plugins(), providers={}).unwrap(package.name)
