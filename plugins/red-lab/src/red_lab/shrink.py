"""Shrink the file of a checkpoint to the tensors that its base model does not have.

They are recognised by their names. The blocks are the longest numbered list ``….layers.<i>.``,
``….h.<i>.`` or ``….layer.<i>.``. In the trunk that contains them, the blocks below the last N and
the embeddings are dropped. Everything else is kept: the top blocks, the modules after them, heads,
experts and router.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import redhost

__all__ = ["Small", "aligned", "find_blocks", "keep_last", "read_state", "shrink_file"]

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


PICKLES = (".pt", ".pth", ".bin")
WRAPPED = ("model_state_dict", "state_dict", "model")
SCHEMA = "red-lab.small/1"


def shrink_file(
    source: Path, *, last: int, out: Path | None = None, base: Path | None = None
) -> dict[str, Any]:
    """Shrink a file; return what was read and written.

    Args:
        source: The whole checkpoint.
        last: N, how many of the last blocks were trained.
        out: The file to write; by default ``…-small.safetensors`` next to the input.
        base: The base model's file, if available.

    Returns:
        The files, ``in`` and ``out``; ``bytes_before`` and ``bytes_after``, ``tensors_before`` and
        ``tensors_after``; ``tied``, the name of an omitted tensor → that of its equal;
        ``blocks`` of the model, and how many are kept, ``kept_blocks``.

    Raises:
        UsageError: If the output would be the input or the base, or an input cannot be read.
    """
    out = out or source.with_name(f"{source.stem}-small.safetensors")
    for given in (source, base):
        if given is not None and out.exists() and out.samefile(given):
            raise redhost.UsageError(
                f"{out} is the input", expected="another file to write", hint="Give --out."
            )
    state = read_state(source)
    blocks = find_blocks(state)
    small = keep_last(state, last, base=None if base is None else read_state(base))
    write_small(out, small)
    return {
        "in": str(source),
        "out": str(out),
        "bytes_before": source.stat().st_size,
        "bytes_after": out.stat().st_size,
        "tensors_before": len(state),
        "tensors_after": len(small.tensors),
        "tied": dict(small.tied),
        "blocks": blocks.count,
        "kept_blocks": last,
    }


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a checkpoint's tensors from `.pt`, or from safetensors; no code is ever run.

    Raises:
        UsageError: If the file contains anything but tensors by name, or cannot be read.
    """
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as e:
            raise _unreadable(path, e) from e
    if path.suffix not in PICKLES:
        raise redhost.UsageError(
            f"cannot read {path}", expected=".pt or .safetensors", found=path.suffix or "no suffix"
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, LookupError, EOFError, OSError) as e:
        raise _unreadable(path, e) from e
    return _tensors(path, found)


def write_small(path: Path, small: Small) -> None:
    """Write the kept tensors as safetensors; a kill leaves either the old file or the new one.

    Raises:
        StoreError: If the file cannot be written.
    """
    about = {
        "schema": SCHEMA,
        "blocks": small.blocks,
        "tied": json.dumps(dict(small.tied), sort_keys=True),
        "dropped": json.dumps(small.dropped),
        "digest": small.digest,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".shrink-", dir=path.parent) as folder:
            temporary = Path(folder, path.name)
            save_file(dict(small.tensors), temporary, metadata=about)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except (OSError, SafetensorError) as e:
        raise redhost.errors.StoreError(f"cannot write {path}", found=_line(e)) from e


def _tensors(path: Path, found: object) -> dict[str, Tensor]:
    """Return the state dict, or the one nested in it."""
    if isinstance(found, Mapping):
        inner = (found[key] for key in WRAPPED if isinstance(found.get(key), Mapping))
        found = next(inner, found)
    if not isinstance(found, Mapping) or not found:
        raise _strange(path, type(found).__name__)
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise _strange(path, f"{type(value).__name__} under {name!r}")
        if value.layout != torch.strided:
            raise _strange(path, f"{value.layout} under {name!r}")
    return dict(found)


def _strange(path: Path, found: str) -> redhost.UsageError:
    return redhost.UsageError(f"cannot read {path}", expected="dense tensors by name", found=found)


def _unreadable(path: Path, error: Exception) -> redhost.UsageError:
    return redhost.UsageError(
        f"cannot read {path}",
        expected="a file of tensors and nothing else",
        found=_line(error),
        hint="Save the model's state_dict() alone, or as safetensors.",
    )


def _line(error: Exception) -> str:
    """Return the first sentence of an error message, which may be long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(". ")[0].strip()
