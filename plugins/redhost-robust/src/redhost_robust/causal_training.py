"""Training of a causal gate: the student where there are too many sequences to enumerate.

    k ∼ uniform,  x ∼ π_k,  weight K·g(x,k),    loss −Σ_t log Σ_k γ(k | x_<t) π_k(x_t | x_<t)

The weighted mean of the loss is the cross-entropy of the student under the teacher. Its minimum
over γ attains the smallest possible KL(π_g ‖ π_γ), at or below that of `distill`'s closed form.

Source: seed 002 (arXiv 2602.17554), Structural Distillation; docs/departures.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from redhost_mechanisms.linear import zero_linear
from torch import Tensor, nn

from .distill import distillation_gap
from .probability import Array
from .sequences import Sequences
from .source import draw, running_sums

__all__ = ["CausalGate", "Distilled", "distillation_loss", "train_causal_gate"]


class CausalGate(nn.Module):
    """A GRU over the prefix: position t takes x_<t as input; the first position has no input.

    Args:
        symbols: A.
        experts: K.
        hidden: Width of the state.
        seed: Seed of the GRU's weights; the last layer starts at 0, the uniform gate.
    """

    def __init__(self, symbols: int, experts: int, *, hidden: int = 16, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.symbols = symbols
        # On a real device the constructor would draw from the global generator.
        gru = nn.GRU(symbols + 1, hidden, batch_first=True, device="meta")
        self.gru = gru.to_empty(device="cpu")
        for tensor in self.gru.parameters():
            nn.init.uniform_(tensor, -(hidden**-0.5), hidden**-0.5, generator=generator)
        self.write = zero_linear(hidden, experts)

    def forward(self, paths: Tensor) -> Tensor:
        """Return logits ``(B, T, K)`` for sequences ``(B, T)``, int64."""
        start = paths.new_full((len(paths), 1), self.symbols)
        seen = torch.cat([start, paths[:, :-1]], dim=1)
        states, _ = self.gru(nn.functional.one_hot(seen, self.symbols + 1).to(torch.float32))
        logits: Tensor = self.write(states)
        return logits


@dataclass(frozen=True, kw_only=True, eq=False)
class Distilled:
    """A trained student, measured on every path.

    Attributes:
        causal: γ(k | x_<t), ``(T, X, K)``.
        gap: KL(π_g ‖ π_γ), nats.
    """

    causal: Array
    gap: float


def distillation_loss(log_gate: Tensor, log_conditionals: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of −Σ_t log Σ_k γ_k π_k(x_t | x_<t), a scalar, nats.

    Args:
        log_gate: log γ, ``(B, T, K)``.
        log_conditionals: log π_k(x_t | x_<t), ``(B, T, K)``.
        weights: K·g(x, k) of the expert k that x was drawn from, ``(B,)``.
    """
    return -(weights * (log_gate + log_conditionals).logsumexp(-1).sum(-1)).mean()


def train_causal_gate(
    student: CausalGate,
    *,
    gate: Array,
    experts: Array,
    sequences: Sequences,
    steps: int = 600,
    rows: int = 256,
    learning_rate: float = 0.02,
    seed: int = 0,
) -> Distilled:
    """Train the student in place on samples of the experts.

    Args:
        student: The causal gate.
        gate: The teacher's g, ``(X, K)``, with Z_g = 1.
        experts: π_k over all paths, ``(K, X)``.
        sequences: The enumeration of the paths.
        steps: Steps of Adam; the learning rate falls linearly to 0.
        rows: B.
        learning_rate: The initial learning rate.
        seed: Seed of the samples.
    """
    generator = torch.Generator().manual_seed(seed)
    paths = torch.from_numpy(sequences.paths)
    weights = torch.from_numpy(len(experts) * gate)  # (X, K)
    logs = torch.from_numpy(sequences.conditionals(experts)).log().permute(2, 1, 0)  # (X, T, K)
    sums = running_sums(torch.from_numpy(experts.copy()))
    optimiser = torch.optim.Adam(student.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 1e-3, total_iters=steps)
    for _ in range(steps):
        k = torch.randint(len(experts), (rows,), generator=generator)
        x = draw(sums[k], 1, generator=generator)[:, 0]
        loss = distillation_loss(student(paths[x]).log_softmax(-1), logs[x], weights[x, k])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        table = student(paths).to(torch.float64).softmax(-1).transpose(0, 1)
    causal: Array = np.ascontiguousarray(table.numpy())
    return Distilled(causal=causal, gap=distillation_gap(gate, causal, experts, sequences))
