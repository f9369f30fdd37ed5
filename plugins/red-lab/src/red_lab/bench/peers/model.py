"""The floor: a plain transformers model with a classifier on its last token.

Neither redhost nor another library is imported here: each starts from the same folder, in its own
environment.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

__all__ = ["CLASSIFIER", "EXPERTS", "IDS", "TARGETS", "Answers", "load", "rank_for", "token_ids"]

CLASSIFIER, IDS = "classifier.safetensors", "ids.json"
EXPERTS = 5
"""Number of experts, or adapters, of every system."""

TARGETS = ("q_proj", "v_proj")
"""The projections that PEFT adapts by default in Llama and Qwen."""


class Answers(nn.Module):
    """Trunk, last token, classifier; named like a causal model, since PEFT expects ``model``."""

    def __init__(self, trunk: Any, classifier: Tensor) -> None:
        super().__init__()
        self.model = trunk
        self.config = trunk.config
        self.register_buffer("classifier", classifier)

    classifier: Tensor

    def forward(
        self, input_ids: Tensor, *, output_hidden_states: bool = False, **_: Any
    ) -> SimpleNamespace:
        """Return logits ``(B, C)`` for token ids ``(B, T)``; every block's states on request."""
        out = self.model(input_ids=input_ids, output_hidden_states=output_hidden_states)
        logits = out.last_hidden_state[:, -1] @ self.classifier.T
        return SimpleNamespace(logits=logits, hidden_states=out.hidden_states)


def load(folder: Path) -> Answers:
    """Load the model of a folder: frozen, in eval mode, float32, without a KV cache."""
    from transformers import AutoModel

    auto: Any = AutoModel
    trunk = auto.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    trunk.config.use_cache = False
    answers = Answers(trunk, load_file(folder / CLASSIFIER)["weight"])
    return answers.eval().requires_grad_(False)


def token_ids(folder: Path) -> Tensor:
    """Return the folder's token ids ``(N, T)``."""
    return torch.tensor(json.loads((folder / IDS).read_text("utf-8")))


def rank_for(model: Answers, places: Sequence[str] = TARGETS) -> int:
    """Return the rank at which an adapter has approximately as many parameters as an expert.

    An expert of redhost has rank D/4, hence D²/2 parameters.
    """
    shapes = [m.weight.shape for n, m in model.named_modules() if n.endswith(tuple(places))]
    width = int(model.config.hidden_size)
    return max(1, round(width**2 / 2 / sum(sum(shape) for shape in shapes)))
