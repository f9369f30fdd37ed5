"""The models of the bench: two backbones with real texts of one length, and compositions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.arithmetic import prompt

__all__ = ["TRUNKS", "in_memory", "open_trunk", "plain", "texts", "token_ids"]

TRUNKS = ("smollm2", "tiny")


def open_trunk(name: str) -> redhost.plugins.TextEncoder:
    """Open the trunk of a backbone with transformers, on which every system is measured.

    Args:
        name: ``smollm2``, or ``tiny`` for the installed one.

    Raises:
        MissingError: If its package is not installed.
    """
    if name == "tiny":
        from red_lab.ranges import shipped

        return redhost.Backbone.load(f"hf:{shipped()[0]}").trunk
    from red_lab.red.run import open_source

    return open_source(name, seed=0, work=Path()).trunk


def texts(count: int) -> list[str]:
    """Return questions of two numbers of two digits each."""
    pairs = itertools.product(range(10, 51), repeat=2)
    return [prompt(a, b) for a, b in itertools.islice(pairs, 0, None, 7)][:count]


def token_ids(trunk: redhost.plugins.TextEncoder, count: int) -> Tensor:
    """Return the token ids ``(N, T)`` of texts of one length."""
    return torch.tensor([trunk.tokens(text) for text in texts(count)])


def plain(model: Any) -> Any:
    """Return the same model without the quantisation entry of its file, which no longer applies."""
    options = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    made = type(model)(type(model.config).from_dict(options))
    made.load_state_dict(model.state_dict())
    return made


def in_memory(backbone: redhost.Backbone, bus: redhost.Bus, *, kind: str) -> redhost.ComposedModel:
    """Return a composition of a backbone and a bus.

    Args:
        backbone: The backbone.
        bus: The bus; it is frozen.
        kind: Its router's kind.
    """
    return redhost.ComposedModel(
        backbone=backbone,
        bus=bus.eval().requires_grad_(False),
        cards={},
        background=(),
        evaluation=(),
        fingerprint="",
        router_kind=kind,
        seed=0,
    )
