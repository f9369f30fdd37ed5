"""Read and write the shrinker's files, which contain tensors only."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import redhost
from red_lab.shrink_state import Small, find_blocks, keep_last

__all__ = ["read_state", "shrink_file", "write_small"]

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
