"""Bits of a prompt's continuation under an adapter, none, or a mixture; cached, and scored.

All adapters of the study act in the same top blocks, so the states below are computed once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from redhost_peft.graft import from_states, moved_states, states_below
from torch import Tensor

import redhost
from red_lab.adapters.study import PROMPT, Excerpt
from red_lab.metrics import write_json
from redhost.core.backbones.interventions import Intervention

__all__ = ["Judge", "Ledger", "Read", "score"]

Read = Callable[[Tensor, Tensor], Tensor]
"""Tokens ``(1, T)``, and the states ``(1, T, D)`` below all adapters → the last states."""


Bits = npt.NDArray[np.float64]
"""Bits of each excerpt, ``(N,)``."""

DRAWS = 2000
"""Bootstrap samples."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Computes the bits of an excerpt's continuation.

    Attributes:
        backbone: The language model.
        acts: Any adapter of the study: all start at the same block.
    """

    backbone: redhost.Backbone
    acts: Intervention
    below: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def bare(self, ids: Tensor, states: Tensor) -> Tensor:
        """Compute the last states without an adapter."""
        with from_states(self.backbone.trunk, states, block=self.acts.lowest - 1):
            return self.backbone.trunk.hidden_states(ids)

    def through(self, acts: Intervention) -> Read:
        """Return a reader with an adapter."""
        trunk = self.backbone.trunk
        return lambda ids, states: moved_states(trunk, ids, acts, states=states)

    def bits(self, excerpt: Excerpt, read: Read) -> float:
        """Return the bits of the tokens after the prompt."""
        ids, head = torch.tensor([excerpt.ids]), self.backbone.classifier
        assert head is not None  # noqa: S101  (it generates text)
        with torch.inference_mode():
            states = read(ids[:, :-1], self.states(excerpt)[:, :-1])
            logits = states[0, PROMPT - 1 :] @ head.T
            nats = torch.nn.functional.cross_entropy(logits, ids[0, PROMPT:], reduction="sum")
        return float(nats) / math.log(2)

    def states(self, excerpt: Excerpt) -> Tensor:
        """Return the states ``(1, T, D)`` below all adapters, cached."""
        if excerpt.ids not in self.below:
            trunk, ids = self.backbone.trunk, torch.tensor([excerpt.ids])
            with torch.inference_mode():
                found = states_below(trunk, ids, self.acts)
            assert found is not None  # noqa: S101  (nobody adapts the first block)
            self.below[excerpt.ids] = found
        return self.below[excerpt.ids]


class Ledger:
    """The bits of excerpts under named models.

    Args:
        folder: The folder of the cache, which has one file for these excerpts.
        judge: Computes the bits.
        excerpts: The excerpts to measure.
        models: Name → factory of a reader.
    """

    def __init__(
        self,
        folder: Path,
        *,
        judge: Judge,
        excerpts: Sequence[Excerpt],
        models: Mapping[str, Callable[[], Read]],
    ) -> None:
        digest = hashlib.sha256(json.dumps([e.ids for e in excerpts]).encode()).hexdigest()
        self.file = folder / f"{digest[:12]}.json"
        self.judge, self.excerpts, self.models = judge, excerpts, models

    @cached_property
    def measured(self) -> dict[str, dict[str, float]]:
        """Model → excerpt's number → bits."""
        return json.loads(self.file.read_text("utf-8")) if self.file.exists() else {}

    def bits(self, names: Sequence[str]) -> list[float]:
        """Return each excerpt's bits under the model named at its index; one model is open."""
        for name in sorted(set(names)):
            measured = self.measured.setdefault(name, {})
            missing = [n for n, each in enumerate(names) if each == name and str(n) not in measured]
            if missing:
                read = self.models[name]()
                measured |= {str(n): self.judge.bits(self.excerpts[n], read) for n in missing}
                write_json(self.measured, self.file)
        return [self.measured[name][str(n)] for n, name in enumerate(names)]


def score(bits: Bits, excerpts: Sequence[Excerpt], *, base: Bits, best: Bits) -> dict[str, Any]:
    """Return bits per byte, and the fraction of the best system's gain over the base.

    Means are over domains; the 95 % interval is a bootstrap over excerpts within each domain.

    Args:
        bits: The system's bits.
        excerpts: The measured excerpts.
        base: The bits without any adapter.
        best: The bits with each domain's own adapter.
    """
    sizes = np.array([e.size for e in excerpts], dtype=np.float64)
    domains = np.array([e.domain for e in excerpts])
    places = {d: np.flatnonzero(domains == d) for d in dict.fromkeys(domains.tolist())}
    every = list(places.values())
    rng = np.random.default_rng(0)

    def mean(counts: Bits, index: Sequence[Any]) -> float:
        return float(np.mean([counts[i].sum() / sizes[i].sum() for i in index]))

    def share(index: Sequence[Any]) -> float:
        bare, most, here = (mean(counts, index) for counts in (base, best, bits))
        return (bare - here) / (bare - most)

    drawn = [share([rng.choice(p, len(p)) for p in every]) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {
        "bits": {d: mean(bits, [index]) for d, index in places.items()},
        "mean": mean(bits, every),
        "of_oracle": mean(best, every) / mean(bits, every),
        "share": share(every),
        "low": float(low),
        "high": float(high),
    }
