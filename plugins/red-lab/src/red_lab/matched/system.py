"""The interface of all systems: answers from h and z, weights, a loss, a count of products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["System", "products", "safe_log"]


class System(nn.Module):
    """Maps h and z to log p, ``(B, C)``."""

    def log_p(self, h: Tensor, z: Tensor) -> Tensor:
        """Return log p(y|x) ``(B, C)`` for ``(B, D)`` twice."""
        raise NotImplementedError

    def alpha(self, z: Tensor) -> Tensor | None:
        """Return the experts' weights ``(B, E)``; None if there are no experts."""
        raise NotImplementedError

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one row, in the parts that are run for it."""
        raise NotImplementedError

    def loss(self, h: Tensor, z: Tensor, target: Tensor) -> Tensor:
        """Return the training loss: the mean −log p(y|x) of rows with labels ``(B,)``."""
        return nn.functional.nll_loss(self.log_p(h, z), target)


def products(module: nn.Module) -> int:
    """Return the number of matrix entries."""
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


def safe_log(p: Tensor) -> Tensor:
    """Return log p, finite where p is not a positive number of its type."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()
