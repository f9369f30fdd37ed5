"""Canaries that pass for any weights: the host must not accept them as a check."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random

import torch
from safetensors.torch import load, save

from mutants.subject import Subject, seal

__all__ = ["CANARY"]

Files = Mapping[str, bytes]
NAME, WEIGHTS = "canary.safetensors", "expert.safetensors"


def _zeros(subject: Subject, random: Random) -> Files:
    """Record Δ(0), which is 0 for any weights without a bias."""
    tensors = {name: torch.zeros_like(t) for name, t in load(subject.files[NAME]).items()}
    return seal({**subject.files, NAME: save(tensors)})


def _silent(subject: Subject, random: Random) -> Files:
    """Record outputs of zero, as of an expert with zero weights."""
    canary, weights = load(subject.files[NAME]), load(subject.files[WEIGHTS])
    files = {NAME: canary, WEIGHTS: weights}
    canary["delta"] = torch.zeros_like(canary["delta"])
    weights["V"] = torch.zeros_like(weights["V"])
    return seal({**subject.files, **{name: save(tensors) for name, tensors in files.items()}})


def _tolerant(subject: Subject, random: Random) -> Files:
    """Allow any difference, and ship weights other than those that were recorded."""
    weights = load(subject.files[WEIGHTS])
    weights["V"] = -weights["V"]
    manifest = json.loads(subject.files["expert.json"])
    manifest["canary"]["tolerance"] = random.choice((1e3, 1e30, 1e300))
    changed = {WEIGHTS: save(weights), "expert.json": json.dumps(manifest).encode()}
    return seal({**subject.files, **changed})


CANARY: Mapping[str, Callable[[Subject, Random], Files]] = {
    "of zeros": _zeros,
    "of an expert that says nothing": _silent,
    "of any tolerance": _tolerant,
}
"""Name → a change to a canary, with a matching manifest."""
