"""Experts that tap the trunk: which chunk each reads, and whether the trunk has what they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ...registry.errors import ContractError
from ...registry.violations import Violation
from ..bus import LayerNorm
from ..experts import Expert, Grafted
from ..generate.context import context_layout
from ..layout import Chunk, Layout, WideNorm
from .backbone import Backbone
from .taps import FINAL, Step, block_at, grafted, tapped

__all__ = ["Tapping", "check_taps", "lay_out", "reader", "token_step"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tapping:
    """Where an expert reads and writes.

    Attributes:
        reads: ``final``, or the block it reads.
        writes: ``final``, or the block it writes to.
        expert: As its package has it.
        digest: Of its package, which names what it adds in the feature cache.
    """

    expert: Expert
    reads: str = FINAL
    writes: str = FINAL
    digest: str = ""

    @property
    def taps(self) -> bool:
        """Whether it reads or writes anywhere but at the end."""
        return {self.reads, self.writes} != {FINAL}

    @property
    def part(self) -> Expert:
        """The expert as the bus has it: one that writes inside the trunk hands on what it added."""
        return self.expert if self.writes == FINAL else Grafted(self.expert)


def lay_out(backbone: Backbone, experts: Mapping[str, Tapping]) -> Layout:
    """Return h̃ for experts by id: one chunk a block that is read, one an expert that writes there.

    Where text is generated nobody taps the trunk, and the chunk is what the router reads.

    Raises:
        ContractError: If the trunk has no such block.
    """
    if backbone.generates:
        return context_layout(backbone.width)
    readers: dict[int, list[str]] = {}
    written = []
    for expert_id in sorted(experts):
        told = experts[expert_id]
        if told.writes != FINAL:
            written.append(_written(backbone, expert_id, told))
        elif told.reads != FINAL:
            readers.setdefault(block_at(backbone.trunk, told.reads), []).append(expert_id)
    read = [
        Chunk(
            key=f"block {block}",
            width=backbone.width,
            normalised=True,
            compute=partial(_tap, backbone, block),
            readers=tuple(readers[block]),
        )
        for block in sorted(readers)
    ]
    return Layout(width=backbone.width, chunks=(*read, *written))


def reader(
    backbone: Backbone, expert_id: str, told: Tapping
) -> Callable[[Sequence[str]], tuple[Tensor, Tensor]]:
    """Return texts → h ``(N, D)`` and what one expert reads of it ``(N, D)``, on the bus."""
    layout = lay_out(backbone, {expert_id: told})
    live = replace(backbone, layout=layout)
    norm = WideNorm(LayerNorm(width=backbone.width, eps=backbone.eps), layout)

    def read(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        wide = live.encode(texts)
        return layout.narrow(wide), layout.read(norm(wide), expert_id)

    return read


def token_step(expert: Expert, *, width: int, eps: float) -> Step:
    """Return S: states ``(B, T, D)`` → Δ(LayerNorm(states)), token by token."""
    norm = LayerNorm(width=width, eps=eps)

    def step(states: Tensor) -> Tensor:
        flat: Tensor = expert(norm(states.flatten(0, 1)))
        return flat.reshape(*states.shape[:-1], -1)

    return step


def check_taps(expert_id: str, backbone: Backbone, *, reads: str, writes: str) -> Violation | None:
    """Return what is wrong with where an expert reads and writes, in this trunk."""
    try:
        layers = {
            field: block_at(backbone.trunk, tap)
            for field, tap in (("reads.tap", reads), ("writes.tap", writes))
            if tap != FINAL
        }
    except ContractError as e:
        return Violation("tap_unknown", "reads.tap", e.expected, e.found, e.hint)
    if "writes.tap" in layers and layers["reads.tap"] > layers["writes.tap"]:
        return Violation(
            "tap_order",
            "writes.tap",
            f"block {layers['reads.tap']} or a later one, since expert {expert_id!r} reads there",
            writes,
            "Read earlier, or write later.",
        )
    return None


def _written(backbone: Backbone, expert_id: str, told: Tapping) -> Chunk:
    step = token_step(told.expert, width=backbone.width, eps=backbone.eps)
    read, write = block_at(backbone.trunk, told.reads), block_at(backbone.trunk, told.writes)
    return Chunk(
        key=f"graft {told.digest}",
        width=backbone.width,
        normalised=False,
        compute=partial(_graft, backbone, read, write, step),
        readers=(expert_id,),
    )


def _tap(backbone: Backbone, block: int, texts: Sequence[str]) -> Tensor:
    return tapped(backbone.trunk, texts, block=block)


def _graft(backbone: Backbone, read: int, write: int, step: Step, texts: Sequence[str]) -> Tensor:
    with torch.inference_mode():
        return grafted(backbone.trunk, texts, read=read, write=write, step=step)
