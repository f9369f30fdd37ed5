"""Compute the frozen part of the trunk once: hidden states below the trained blocks, on disk.

    H = blocks 1 … n−k of the frozen trunk, once for every distinct text      (N, T, D)
    h = pool(blocks n−k+1 … n of H)                                            (N, D)

Everything above is trained from H. H is memory-mapped, is found again by its content, and an
interrupted computation of it can be resumed.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import redhost

__all__ = ["Above", "Below", "Precision", "below", "cast"]

Precision = Literal["float32", "bfloat16"]

CHUNK = 256
"""Texts between two progress records: the most work that an interruption loses."""


class _StopForward(Exception):  # noqa: N818  (a signal, not an error)
    """Raised when the first trained block is reached, whose input is the result."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


@dataclass(frozen=True, kw_only=True, eq=False)
class Below:
    """Hidden states below the trained blocks.

    Attributes:
        hidden: H ``(N, T, D)``, memory-mapped, float32; rows end in zeros.
        lengths: Tokens of each text, ``(N,)``.
        place: Row of each text.
        seconds: Total time of computing H, interruptions excluded.
    """

    hidden: npt.NDArray[np.float32]
    lengths: Tensor
    place: dict[str, int]
    seconds: float = 0.0

    def rows(self, texts: Sequence[str]) -> Tensor:
        """Return the rows of texts, ``(M,)``."""
        return torch.tensor([self.place[t] for t in texts])

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return H ``(B, T, D)`` cut at the longest of the rows, and its mask ``(B, T)``."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        hidden = torch.from_numpy(self.hidden[rows.numpy(), :longest])
        return hidden, torch.arange(longest)[None, :] < lengths[:, None]


class Above(nn.Module):
    """The top k blocks and the final norm, trainable, with the trunk's pooling.

    Args:
        trunk: The trunk they are copied from.
        last_blocks: k; all blocks where there are fewer.
    """

    def __init__(self, trunk: redhost.plugins.TextEncoder, *, last_blocks: int) -> None:
        super().__init__()
        path, blocks = redhost.plugins.blocks_of(trunk.model)
        model: Any = copy.deepcopy(trunk.model)
        parent, _, name = path.rpartition(".")
        top_blocks = list(model.get_submodule(path))[max(0, len(blocks) - last_blocks) :]
        setattr(model.get_submodule(parent), name, nn.ModuleList(top_blocks))
        model.config.num_hidden_layers = len(top_blocks)
        model.set_input_embeddings(nn.Identity())
        # With so few tokens the fused kernel's backward pass takes a fifth of a step on a CPU.
        model.set_attn_implementation("eager")
        self.model = model.requires_grad_(True)
        self.pooling = trunk.pooling.mode

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return h ``(B, D)`` for H ``(B, T, D)``, right-padded, and its mask ``(B, T)``."""
        out: Tensor = self.model(
            inputs_embeds=hidden, attention_mask=mask.long(), use_cache=False
        ).last_hidden_state
        if self.pooling == "last":
            return out[torch.arange(len(out)), mask.sum(1) - 1]
        weight = mask[..., None].to(out.dtype)
        pooled: Tensor = (out * weight).sum(1) / weight.sum(1)
        return pooled


def cast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context in which matrix products are computed in a precision."""
    enabled = precision != "float32"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def below(
    backbone: redhost.Backbone,
    texts: Sequence[str],
    *,
    last_blocks: int,
    folder: Path,
    precision: Precision = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> Below:
    """Return H of distinct texts, computing only what is not on disk.

    Args:
        backbone: The bare backbone.
        texts: Distinct texts.
        last_blocks: k, the blocks that are trained.
        folder: Where H is kept.
        precision: What the trunk computes in.
        progress: Called with (texts done, texts in all).
    """
    trunk = backbone.trunk
    ordered = sorted(texts, key=lambda t: (len(trunk.tokens(t)), t))
    lengths = torch.tensor([len(trunk.tokens(t)) for t in ordered])
    key = [backbone.fingerprint(), last_blocks, torch.__version__, *ordered]
    key += [precision] * (precision != "float32")
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    path, note = folder / f"{name}.npy", folder / f"{name}.done"
    shape = (len(ordered), int(lengths.max()), trunk.width)
    known = json.loads(note.read_text("utf-8")) if note.exists() and path.exists() else None
    done, before = (known["done"], known["seconds"]) if known else (0, 0.0)
    start = perf_counter()
    mode: Any = "r+" if done else "w+"
    array = np.lib.format.open_memmap(path, mode=mode, dtype=np.float32, shape=shape)
    while done < len(ordered):
        chunk = ordered[done : done + CHUNK]
        with cast(trunk.device, precision):
            _fill(array[done : done + len(chunk)], trunk, chunk, last_blocks=last_blocks)
        array.flush()
        done += len(chunk)
        before, start = before + perf_counter() - start, perf_counter()
        note.write_text(json.dumps({"done": done, "seconds": before}))
        if progress is not None:
            progress(done, len(ordered))
    hidden = np.lib.format.open_memmap(path, mode="r")
    place = {t: n for n, t in enumerate(ordered)}
    return Below(hidden=hidden, lengths=lengths, place=place, seconds=before)


def _fill(
    array: npt.NDArray[np.float32],
    trunk: redhost.plugins.TextEncoder,
    texts: Sequence[str],
    *,
    last_blocks: int,
) -> None:
    """Write the inputs of the first trained block into ``(M, T, D)``."""
    _, blocks = redhost.plugins.blocks_of(trunk.model)

    def stop(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        raise _StopForward(arguments[0])

    hook = blocks[max(0, len(blocks) - last_blocks)].register_forward_pre_hook(stop)
    try:
        with torch.inference_mode():
            for index, ids in trunk.batches(texts):
                hidden = _interrupted(trunk, ids)[: len(index)].float().cpu().numpy()
                array[index, : hidden.shape[1]] = hidden
    finally:
        hook.remove()


def _interrupted(trunk: redhost.plugins.TextEncoder, ids: Tensor) -> Tensor:
    try:
        trunk.hidden_states(ids)
    except _StopForward as reached:
        return reached.hidden
    raise redhost.UsageError("the trunk has no such block to stop at")
