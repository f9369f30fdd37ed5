"""Digests of tensors and of a backbone: identity by content, never by path or name (law 4)."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version

import msgspec
import torch
from torch import Tensor

from ..registry.package.forms import DEFAULT_TASK
from ..registry.package.manifest import Features


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 over names, dtypes, shapes and bytes, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def backbone_fingerprint(
    *,
    tensors: Mapping[str, Tensor],
    config: str,
    classifier: Tensor | None,
    labels: tuple[str, ...],
    tokenizer: str,
    pooling: object,
    norm: Mapping[str, str | float],
    max_tokens: int | None = None,
    features: Features | None = None,
    task: str = DEFAULT_TASK,
) -> str:
    """Return the content digest that identifies a backbone.

    Args:
        tensors: The encoder's tensors as loaded, float32.
        config: Its configuration, as canonical JSON.
        classifier: W_c ``(C, D)``; an expert that writes hidden states is trained through it.
        labels: The classifier's labels in order: permuted labels are another backbone.
        tokenizer: The tokenizer's digest.
        pooling: What identifies the pooling, as JSON.
        norm: The bus norm's kind and ε.
        max_tokens: Where texts are truncated, if not at the model's longest input.
        features: What makes up h, if not only the last states.
        task: The backbone's task.
    """
    parts: dict[str, object] = {
        "tensors": tensor_digest(tensors),
        "config": config,
        "classifier": "" if classifier is None else tensor_digest({"weight": classifier}),
        "labels": list(labels),
        "tokenizer": tokenizer,
        "pooling": pooling,
        "norm": dict(norm),
    }
    if max_tokens is not None:
        parts["max_tokens"] = max_tokens
    if features is not None:
        parts["features"] = msgspec.to_builtins(features)
    if task != DEFAULT_TASK:
        parts["task"] = task
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def library_versions() -> dict[str, str]:
    """Return the versions of libraries that weights and job results depend on."""
    return dict(_versions())


@cache  # each is a file to read, and every job asks
def _versions() -> dict[str, str]:
    names = ("redhost", "torch", "transformers", "safetensors")
    return {"python": platform.python_version(), **{n: version(n) for n in names}}
