"""AdamW, bitwise identical to torch's own on a CPU, and its cosine schedule.

`torch.optim` imports torch's compiler with the first optimiser, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

EPS = 1e-8


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    Args:
        parameters: The parameters to update.
        weight_decay: Share of a weight that is subtracted at each step, times the learning rate.
        betas: Decay rates of the two moments.

    Attributes:
        parameters: The parameters to update.
        state: By updated parameter: the number of its steps, and both moments.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.parameters = tuple(parameters)
        self.weight_decay, self.betas = weight_decay, betas
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take a step; parameters without a gradient are not updated.

        Args:
            rate: The learning rate.
        """
        first, second = self.betas
        for p in self.parameters:
            if p.grad is None:
                continue
            state = self.state.setdefault(p, {})
            if not state:
                state["step"] = torch.tensor(0.0)
                state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            mean, square = state["exp_avg"], state["exp_avg_sq"]
            state["step"] += 1
            count = state["step"].item()
            if self.weight_decay:
                p.mul_(1 - rate * self.weight_decay)
            mean.lerp_(p.grad, 1 - first)
            square.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
            root = (square.sqrt() / (1 - second**count) ** 0.5).add_(EPS)
            p.addcdiv_(mean, root, value=-(rate / (1 - first**count)))


def cosine_rates(peak: float, steps: int) -> Iterator[float]:
    """Yield a learning rate for each step, from the peak along a cosine to zero.

    Each is computed from the last, as in `torch.optim.lr_scheduler.CosineAnnealingLR`.
    """
    rate = peak
    for step in range(1, steps + 1):
        yield rate
        rate *= (1 + math.cos(math.pi * step / steps)) / (
            1 + math.cos(math.pi * (step - 1) / steps)
        )
