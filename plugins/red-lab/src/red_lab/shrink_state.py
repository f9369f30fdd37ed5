"""Which tensors of a checkpoint its base model already has, recognised by their names.

The blocks are the longest numbered list ``….layers.<i>.``, ``….h.<i>.`` or ``….layer.<i>.``. In the
trunk that contains them, the blocks below the last N and the embeddings are dropped. Everything
else is kept: the top blocks, the modules after them, heads, experts and router.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import redhost

__all__ = ["Blocks", "Small", "aligned", "find_blocks", "keep_last"]

State = Mapping[str, Tensor]

BLOCK = re.compile(r"(?:^|(?<=\.))(?:layers|h|layer)\.(\d+)\.")
EMBEDDINGS = re.compile(r"wte|wpe|(?:.*_)?emb(?:ed|eddings?)?(?:_.*)?")
"""Names of the modules before a trunk's blocks: Qwen, Llama, GPT-2 and BERT."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The numbered list that is the model's blocks.

    Attributes:
        name: The list's name, e.g. ``backbone.model.layers``.
        count: n, the number of blocks.
    """

    name: str
    count: int

    @property
    def roots(self) -> tuple[str, ...]:
        """The possible prefixes of the trunk's embeddings, longest first."""
        parent = self.name.rpartition(".")[0]
        above, _, last = parent.rpartition(".")
        found = (parent, above) if last in {"encoder", "decoder"} else (parent,)
        return tuple(f"{root}." if root else "" for root in found)

    def is_frozen(self, name: str, *, last: int) -> bool:
        """Return whether a tensor belongs to a block below the last N, or to the embeddings."""
        if name.startswith(f"{self.name}."):
            return int(name.removeprefix(f"{self.name}.").split(".")[0]) < self.count - last
        return any(
            EMBEDDINGS.fullmatch(name.removeprefix(root).split(".")[0])
            for root in self.roots
            if name.startswith(root)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Small:
    """The kept part of a checkpoint.

    Attributes:
        blocks: The checkpoint's name for its list of blocks.
        tensors: The kept tensors by name, each with storage of its own.
        tied: Name → the name of the tensor it is tied to, kept or dropped.
        dropped: The names of tensors that the base contains.
        digest: Digest of the dropped tensors, by which a wrong base is recognised.
    """

    blocks: str
    tensors: State
    tied: Mapping[str, str]
    dropped: tuple[str, ...]
    digest: str


def find_blocks(state: State) -> Blocks:
    """Return the longest numbered list; of equally long lists, the one with more parameters.

    Raises:
        UsageError: If there is none, or its first blocks are missing.
    """
    found: defaultdict[str, set[int]] = defaultdict(set)
    weight: defaultdict[str, int] = defaultdict(int)
    for name, tensor in state.items():
        for match in BLOCK.finditer(name):
            key = name[: match.start(1) - 1]
            found[key].add(int(match[1]))
            weight[key] += tensor.numel()
    if not found:
        raise redhost.UsageError(
            "the checkpoint has no transformer blocks",
            expected="tensors named …layers.<i>., …h.<i>. or …layer.<i>.",
            found=", ".join(sorted(state)[:3]) or "no tensors",
        )
    name = max(found, key=lambda key: (len(found[key]), weight[key], key))
    numbers = found[name]
    if numbers != set(range(len(numbers))):
        raise redhost.UsageError(
            "the checkpoint is not a whole model",
            expected=f"{name}.0 to {name}.{max(numbers)}",
            found=f"{len(numbers)} of them, the first {name}.{min(numbers)}",
        )
    return Blocks(name=name, count=len(numbers))


def keep_last(state: State, last: int, *, base: State | None = None) -> Small:
    """Drop the tensors that the base model has.

    Args:
        state: The whole checkpoint.
        last: N, how many of the last blocks were trained.
        base: The base model's tensors, if available: tensors that are bitwise identical to them
            are dropped, and tensors that would be dropped are checked against them.

    Raises:
        UsageError: If there are fewer blocks, or a tensor to be dropped differs from the base's.
    """
    blocks = find_blocks(state)
    if not 0 <= last <= blocks.count:
        raise redhost.UsageError(
            "cannot keep that many blocks", expected=f"0 to {blocks.count}", found=str(last)
        )
    frozen = {n for n in state if blocks.is_frozen(n, last=last)}
    same: set[str] = set()
    if base is not None:
        theirs = aligned(base, blocks.name)
        same = {n for n, t in state.items() if n in theirs and _equal(t, theirs[n])}
        _refuse_lost(sorted(frozen - same))
    dropped = frozen | same
    tied = _tied(state, first=[*sorted(dropped), *sorted(state.keys() - dropped)])
    dropped -= tied.keys()
    remaining = [n for n in state if n not in dropped and n not in tied]
    return Small(
        blocks=blocks.name,
        tensors={
            n: state[n].detach().clone(memory_format=torch.contiguous_format) for n in remaining
        },
        tied=tied,
        dropped=tuple(sorted(dropped)),
        digest=_digest(state, dropped),
    )


def aligned(base: State, name: str) -> State:
    """Return a base's tensors under the names of a checkpoint that wraps it, or is part of it.

    Args:
        base: The base model's tensors.
        name: The checkpoint's name for its list of blocks.
    """
    theirs = find_blocks(base).name
    if name.endswith(theirs):
        outer = name.removesuffix(theirs)
        return {f"{outer}{n}": t for n, t in base.items()}
    outer = theirs.removesuffix(name)
    return {n.removeprefix(outer): t for n, t in base.items()}


def _refuse_lost(names: list[str]) -> None:
    if names:
        raise redhost.UsageError(
            f"{len(names)} tensors to be dropped differ from the base's",
            expected="frozen blocks and embeddings equal to the base's bit for bit",
            found=names[0],
            hint="Raise --trainable-last-n-layers, or give the base it was trained from.",
        )


def _tied(state: State, *, first: Iterable[str]) -> dict[str, str]:
    """Return name → earlier name of a tensor with the same storage and layout."""
    seen: dict[tuple[object, ...], str] = {}
    tied = {}
    for name in first:
        t = state[name]
        view = (t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride(), t.dtype)
        if t.numel() and seen.setdefault(view, name) != name:
            tied[name] = seen[view]
    return tied


def _equal(one: Tensor, other: Tensor) -> bool:
    """Compare bits, so that −0 is not 0 and a NaN is itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _digest(state: State, names: Iterable[str]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes of some tensors."""
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{name}\0{state[name].dtype}\0{tuple(state[name].shape)}\0".encode())
        total.update(_bits(state[name]).numpy().data)
    return total.hexdigest()
