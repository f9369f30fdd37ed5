"""The backbones of the bench: SmolLM2-135M and the tiny one, and real texts of one length."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from torch import Tensor

import redhost
from red_lab.arithmetic import prompt

__all__ = ["TRUNKS", "open_trunk", "texts", "token_ids"]

TRUNKS = ("smollm2", "tiny")


def open_trunk(name: str) -> redhost.authoring.TextEncoder:
    """Open the trunk of a backbone with transformers, on which every system is measured.

    Args:
        name: ``smollm2``, or ``tiny`` for the installed one.

    Raises:
        MissingError: If its package is not installed.
    """
    if name == "tiny":
        from red_lab.hotswap_measure import shipped

        return redhost.Backbone.load(f"hf:{shipped()[0]}").trunk
    from red_lab.red.run import open_source

    return open_source(name, seed=0, work=Path()).trunk


def texts(count: int) -> list[str]:
    """Return questions of two numbers of two digits each."""
    pairs = itertools.product(range(10, 51), repeat=2)
    return [prompt(a, b) for a, b in itertools.islice(pairs, 0, None, 7)][:count]


def token_ids(trunk: redhost.authoring.TextEncoder, count: int) -> Tensor:
    """Return the token ids ``(N, T)`` of texts of one length."""
    return torch.tensor([trunk.tokens(text) for text in texts(count)])
